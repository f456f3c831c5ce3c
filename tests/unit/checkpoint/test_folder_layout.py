"""The files of a model's folder, and what is said of one that lacks some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint import tokenizer_converters
from parallax_core.checkpoint.folder_layout import check_folder, hint_for, is_in_layout, read_shards

SHARDS = {"a.weight": "model-2.safetensors", "b.weight": "model-1.safetensors", "c.weight": "model-2.safetensors"}


def write_model(folder: Path, *names: str) -> Path:
    for name in ("config.json", "tokenizer.json", *names):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "a.b.safetensors", "1_Pooling/config.json", "additional_chat_templates/tool_use.jinja"]
)
def test_file_of_a_model_is_in_its_layout(name: str) -> None:
    assert is_in_layout(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".hidden", "../config.json", "/etc/passwd", "a/b", "a\\b", "2_Pooling/config.json"),
        *("1_Pooling/config.json/x", "1_Poolingxconfig.json/y", "additional_chat_templates/x.txt"),
        *("additional_chat_templates/a/b.jinja", "additional_chat_templates/", "additional_chat_templates/.jinja"),
    ],
)
def test_any_other_path_is_not(name: str) -> None:
    assert not is_in_layout(name)


def test_model_of_one_file_and_one_of_shards_are_complete(tmp_path: Path) -> None:
    check_folder(write_model(tmp_path, "model.safetensors"))
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": SHARDS}))
    assert read_shards(tmp_path) == ["model-1.safetensors", "model-2.safetensors"]
    with pytest.raises(ParallaxError, match=r"is not a complete model: model-2\.safetensors missing") as caught:
        check_folder(tmp_path)
    assert caught.value.hint == "copy or download the missing files again"
    (tmp_path / "model-2.safetensors").write_text("")
    check_folder(tmp_path)


def test_all_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match=r"config\.json, tokenizer\.json, \*\.safetensors missing") as caught:
        check_folder(tmp_path)
    assert caught.value.hint == "a model is a folder with config.json, tokenizer.json and *.safetensors"


def test_damaged_configuration_is_told(tmp_path: Path) -> None:
    (write_model(tmp_path, "model.safetensors") / "config.json").write_text("[1]")
    with pytest.raises(ParallaxError, match=r"config\.json"):
        check_folder(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.safetensors", "b.bin"], "download the missing files again"),
        (["a.gguf", "b.bin"], "gguf:PATH"),
        (["pytorch_model.bin"], "never loaded"),
        (["model.ckpt"], "never loaded"),
        (["README.md"], "a model is a folder with"),
    ],
)
def test_hint_fits_what_there_is(names: list[str], words: str) -> None:
    assert words in hint_for(names)


def test_model_that_lacks_nothing_but_a_tokenizer_may_be_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_converters, "entry_points", lambda group: ())
    write_model(tmp_path, "model.safetensors")
    for name, is_told in (("tokenizer.json", True), ("config.json", False)):
        (tmp_path / name).rename(tmp_path / "aside")
        with pytest.raises(ParallaxError, match=f"not a complete model: {name} missing") as caught:
            check_folder(tmp_path)
        assert (caught.value.hint == tokenizer_converters.INSTALL) == is_told
        (tmp_path / "aside").rename(tmp_path / name)
