from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.models.chat_template import PromptEnding
from parallax_core.models.generation_config import RequestDefaults
from parallax_core.models.tokenizer import ModelTokenizer
from tests.unit.tinymodel import write, write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path)


USER = {"role": "user", "content": "hé"}


def test_chat_is_rendered_and_tokenized_with_special_tokens(folder: Path) -> None:
    text = ModelTokenizer(folder)
    ids = text.encode_chat([USER])
    assert ids[-2:] == (256, text.encode_chat([USER])[-1])
    assert text.decode(ids) == "<user>hé>"


def test_template_file_wins_over_the_one_in_the_settings(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    text = ModelTokenizer(folder)
    assert text.decode(text.encode_chat([USER])) == "file"


def test_template_may_refuse_and_its_reason_is_told(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        ModelTokenizer(folder).encode_chat([USER])


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ nothing.at.all }}"])
def test_template_cannot_reach_out_or_change_anything(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        ModelTokenizer(folder).encode_chat([USER])


def test_model_without_template_cannot_chat(folder: Path) -> None:
    write(folder, "tokenizer_config.json")
    text = ModelTokenizer(folder)
    assert not text.can_chat
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        text.encode_chat([USER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({}, {7, 256}), ({"eos_token_id": [3, 4]}, {3, 4, 256}), ({"eos_token_id": 5}, {5, 256})],
)
def test_stop_ids_come_from_every_place_that_names_them(folder: Path, generation: Any, expected: set[int]) -> None:
    write(folder, "generation_config.json", **generation)
    assert ModelTokenizer(folder).stop_ids == expected


def test_recommended_sampling_is_taken_from_the_model(folder: Path) -> None:
    write(folder, "generation_config.json", temperature=0.6, top_p=0.95, top_k=20)
    assert ModelTokenizer(folder).defaults.describe() == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert ModelTokenizer(folder, "off").defaults == RequestDefaults()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_damaged_file_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ParallaxError, match=name):
        ModelTokenizer(folder)


@pytest.mark.parametrize("template", [5, ["x"], [{"name": "default"}]])
def test_template_of_the_wrong_kind_is_named(folder: Path, template: object) -> None:
    write(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ParallaxError, match="chat template"):
        ModelTokenizer(folder)


def test_template_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ParallaxError, match="chat template"):
        ModelTokenizer(folder)


def test_conversation_that_is_far_too_long_is_refused_without_tokenizing(folder: Path) -> None:
    write(folder, "config.json", max_position_embeddings=10)
    text = ModelTokenizer(folder)
    with pytest.raises(InvalidRequest, match="characters"):
        text.encode_chat([{"role": "user", "content": "x" * 1000}])
    assert len(text.encode_chat([USER])) > 5


def test_damaged_template_is_told_when_it_is_compiled(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ParallaxError, match="chat template"):
        ModelTokenizer(folder).compile_template()


def test_template_is_not_run_by_looking_at_a_model(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'x'|center(100000000000000) }}")
    assert ModelTokenizer(folder).can_chat
    with pytest.raises(MemoryError):
        ModelTokenizer(folder).encode_chat([USER])


def test_template_may_write_only_so_much(folder: Path) -> None:
    write(folder, "config.json", max_position_embeddings=100)
    (folder / "chat_template.jinja").write_text(
        "{% for _ in range(100000) %}{% for _ in range(100000) %}x{% endfor %}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match="writes more than 500 characters") as caught:
        ModelTokenizer(folder).encode_chat([USER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("content", ["go on", " go on", "go on ", "  go on  "])
def test_last_message_may_be_left_open(folder: Path, content: str) -> None:
    turns = [USER, {"role": "assistant", "content": content}]
    text = ModelTokenizer(folder)
    rendered = text.decode(text.encode_chat(turns, ending=PromptEnding(opens_answer=False, continues_last=True)))
    assert rendered == "<user>hé<assistant>" + content
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m['content'] | trim }}]{% endfor %}")
    text = ModelTokenizer(folder)
    rendered = text.decode(text.encode_chat(turns, ending=PromptEnding(opens_answer=False, continues_last=True)))
    assert rendered == "[hé][go on"


def test_last_message_that_the_template_changes_cannot_be_left_open(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] | upper }}")
    with pytest.raises(InvalidRequest) as caught:
        ModelTokenizer(folder).encode_chat([USER], ending=PromptEnding(opens_answer=False, continues_last=True))
    assert caught.value.param == "continue_final_message"


def test_template_knows_whether_an_answer_is_to_open(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'yes' if add_generation_prompt else 'no' }}")
    text = ModelTokenizer(folder)
    assert text.decode(text.encode_chat([USER])) == "yes"
    assert text.decode(text.encode_chat([USER], ending=PromptEnding(opens_answer=False))) == "no"


def test_text_that_the_tokenizer_gives_up_on_is_refused(tmp_path: Path) -> None:
    text = ModelTokenizer(write_model(tmp_path, split="(a+)+$"))
    with pytest.raises(InvalidRequest, match="tokenizer fails on this text") as caught:
        text.encode("a" * 60 + "!")
    assert caught.value.param == "prompt"
    assert len(text.encode("good")) == 4
