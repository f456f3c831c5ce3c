from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.tokenizer_converters import FoundConverter
from parallax_core.models import tokenizer_conversion
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.models.tokenizer_conversion import convert_tokenizer, find_tokenizer_file
from tests.unit.tinymodel import write_model


class Converter:
    """Returns the tokenizer that a file has, and counts."""

    files = ("tokenizer.tiny",)
    revision = 1

    def __init__(self) -> None:
        self.given: list[Mapping[str, Any]] = []

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        self.given.append(settings)
        if not (text := file.read_text(encoding="utf-8")):
            raise KeyError("empty")
        return text


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converter:
    found = Converter()
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        tokenizer_conversion,
        "find_converter",
        lambda names: FoundConverter("tokenizer.tiny", "test", found) if "tokenizer.tiny" in names else None,
    )
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    folder = write_model(tmp_path / "model")
    (folder / "tokenizer.json").rename(folder / "tokenizer.tiny")
    return folder


def test_tokenizer_is_converted_once(folder: Path, converter: Converter) -> None:
    first = ModelTokenizer(folder).encode("some text")
    before = sorted(path.name for path in folder.iterdir())
    assert ModelTokenizer(folder).encode("some text") == first
    assert len(converter.given) == 1
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("change", ["file", "settings", "revision"])
def test_whatever_it_depends_on_converts_it_again(folder: Path, converter: Converter, change: str) -> None:
    first = find_tokenizer_file(folder, {})
    if change == "file":
        (folder / "tokenizer.tiny").write_bytes((folder / "tokenizer.tiny").read_bytes() + b" ")
    elif change == "revision":
        converter.revision = 2
    assert find_tokenizer_file(folder, {"legacy": False} if change == "settings" else {}) != first
    assert len(converter.given) == 2


def test_own_tokenizer_comes_first(folder: Path, converter: Converter) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert find_tokenizer_file(folder, {}) == folder / "tokenizer.json"
    assert not converter.given


def test_added_tokens_of_older_models_are_given(folder: Path, converter: Converter) -> None:
    (folder / "added_tokens.json").write_text(json.dumps({"<x>": 7}))
    find_tokenizer_file(folder, {})
    assert converter.given[0]["added_tokens_decoder"] == {"7": {"content": "<x>"}}


def test_failure_of_a_converter_names_the_file_and_leaves_nothing(folder: Path, converter: Converter) -> None:
    (folder / "tokenizer.tiny").write_text("")
    with pytest.raises(ParallaxError, match=r"tokenizer.tiny cannot be converted: 'empty'"):
        find_tokenizer_file(folder, {})
    (folder / "tokenizer.tiny").unlink()
    with pytest.raises(ParallaxError, match=r"has no tokenizer.json"):
        find_tokenizer_file(folder, {})
    assert len(converter.given) == 1


def test_cache_that_cannot_be_written_is_named(folder: Path, converter: Converter, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ParallaxError, match="cannot be converted") as caught:
        find_tokenizer_file(folder, {})
    assert "cache folder writable" in caught.value.hint


@pytest.mark.parametrize("error", [ParallaxError("it has no vocabulary", "fetch it again"), PermissionError("no")])
def test_error_with_a_reason_is_told_as_it_is(folder: Path, converter: Converter, error: Exception) -> None:
    def refuse(file: Path, settings: Mapping[str, Any]) -> str:
        raise error

    converter.convert = refuse  # type: ignore[method-assign]
    with pytest.raises(type(error)) as caught:
        convert_tokenizer(folder / "tokenizer.tiny", FoundConverter("tokenizer.tiny", "test", converter), {})
    assert caught.value is error
