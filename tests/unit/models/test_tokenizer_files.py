from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from parallax_core.base.errors import ParallaxError
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.models.tokenizer_files import read_special_tokens, read_tokenizer_settings
from tests.unit.tinymodel import write, write_model

TEXTS = ["plain text " * 30, "<end>x<pad>y<tool>z", "", "<new>again<new>"]
TOKEN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def change(folder: Path, **entries: Any) -> None:
    """Set entries of ``tokenizer_config.json``."""
    path = folder / "tokenizer_config.json"
    common = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    path.write_text(json.dumps(json.loads(path.read_text()) | common | entries))


def store_state(folder: Path) -> None:
    """Store in ``tokenizer.json`` what a training run leaves there, and two tokens that are not special."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens([AddedToken("<pad>", normalized=False), AddedToken("<tool>", normalized=False)])
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding(length=96, pad_id=1, pad_token="<pad>")
    tokenizer.save(path)


def check_like_transformers(folder: Path) -> None:
    ours, theirs = ModelTokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text)
        assert list(ids) == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_stored_truncation_and_padding_do_not_touch_prompts(folder: Path) -> None:
    store_state(folder)
    change(folder, pad_token="<pad>")
    assert len(ModelTokenizer(folder).encode(TEXTS[0])) == len(TEXTS[0])
    check_like_transformers(folder)


def test_token_that_is_named_is_special(folder: Path) -> None:
    store_state(folder)
    change(folder, pad_token="<pad>")
    assert ModelTokenizer(folder).decode(ModelTokenizer(folder).encode(TEXTS[1])) == "xy<tool>z"
    change(folder, pad_token="<pad>", additional_special_tokens=["<tool>"])
    check_like_transformers(folder)


def test_token_that_only_the_settings_add_is_one_token(folder: Path) -> None:
    change(folder, added_tokens_decoder={"257": {"content": "<new>", **TOKEN}, "256": {"content": "<end>", **TOKEN}})
    assert ModelTokenizer(folder).encode("<new>a")[:1] == (257,)
    check_like_transformers(folder)


def test_token_with_an_id_that_it_cannot_get_is_left_out(folder: Path) -> None:
    change(folder, added_tokens_decoder={"9000": {"content": "<new>", **TOKEN}}, pad_token="<nowhere>")
    assert ModelTokenizer(folder).encode("<new>")[0] < 256
    assert ModelTokenizer(folder).encode("<nowhere>")[0] < 256


def test_special_tokens_may_be_split(folder: Path) -> None:
    change(folder, split_special_tokens=True)
    assert len(ModelTokenizer(folder).encode("<end>")) == 5
    check_like_transformers(folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"eos_token": "</s>", "pad_token": None, "image_token": "<image>", "audio_token": {"content": "<audio>"}},
        {"unk_token": {"__type": "AddedToken", "content": "<unk>", **TOKEN}, "extra_special_tokens": {"sot": "<sot>"}},
        {"additional_special_tokens": ["<a>", "<b>"], "mask_token": "<mask>", "use_token": True, "model_max_length": 5},
    ],
)
def test_templates_get_the_special_tokens_that_transformers_names(folder: Path, entries: dict[str, Any]) -> None:
    change(folder, **entries)
    assert (
        read_special_tokens(read_tokenizer_settings(folder)) == AutoTokenizer.from_pretrained(folder).special_tokens_map
    )


def test_special_tokens_map_counts_if_no_added_tokens_are_listed(folder: Path) -> None:
    write(folder, "special_tokens_map.json", eos_token="<map>", sep_token={"content": "<sep>", **TOKEN})
    expected = {"eos_token": "<map>", "sep_token": "<sep>"}
    assert read_special_tokens(read_tokenizer_settings(folder)) == expected
    change(folder, added_tokens_decoder={})
    assert read_special_tokens(read_tokenizer_settings(folder)) == {"eos_token": "<end>"}


def test_tool_template_is_found_in_its_folder(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("default{# tools #}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    text = ModelTokenizer(folder)
    user = {"role": "user", "content": "x"}
    assert text.show(text.encode_chat([user])) == "default"
    assert text.show(text.encode_chat([user], tools=[{"type": "function"}])) == "tools"


def test_template_of_a_processor_is_the_last_resort(folder: Path) -> None:
    write(folder, "chat_template.json", chat_template="processor")
    user = {"role": "user", "content": "x"}
    assert ModelTokenizer(folder).show(ModelTokenizer(folder).encode_chat([user])) != "processor"
    write(folder, "tokenizer_config.json")
    assert ModelTokenizer(folder).show(ModelTokenizer(folder).encode_chat([user])) == "processor"


@pytest.mark.parametrize("listed", [{"x": {}}, {"256": 5}])
def test_damaged_list_of_added_tokens_is_told(folder: Path, listed: dict[str, Any]) -> None:
    change(folder, added_tokens_decoder=listed)
    with pytest.raises(ParallaxError, match="cannot be read"):
        ModelTokenizer(folder)
