from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint import tokenizer_converters
from parallax_core.checkpoint.folder_layout import check_folder, find_tokenizer
from parallax_core.checkpoint.tokenizer_converters import find_converter


class One:
    files = ("one.model", "*.ones")


class Two:
    files = ("two.model", "one.model")


def offer(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Have these entry points and no others."""
    found = EntryPoints(EntryPoint(name, f"{__name__}:{value}", "parallax.tokenizers") for name, value in points)
    monkeypatch.setattr(tokenizer_converters, "entry_points", lambda group: found.select(group=group))


def test_first_converter_by_name_takes_its_best_file(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("b", "Two"), ("a", "One"))
    found = find_converter(["b.ones", "a.ones", "one.model", "two.model"])
    assert found is not None
    assert found.file == "one.model"
    assert isinstance(found.converter, One)
    other = find_converter(["b.ones", "a.ones"])
    assert other is not None
    assert other.file == "a.ones"
    assert find_converter(["config.json"]) is None


def test_converters_are_not_looked_for_beside_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("a", "Missing"))
    assert find_tokenizer(["one.model", "tokenizer.json"]) == "tokenizer.json"


def test_folder_with_a_file_that_can_be_converted_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("a", "One"))
    for name in ("config.json", "model.safetensors", "one.model"):
        (tmp_path / name).write_text("{}")
    check_folder(tmp_path)
    (tmp_path / "one.model").rename(tmp_path / "other.model")
    with pytest.raises(ParallaxError, match=r"tokenizer.json missing") as caught:
        check_folder(tmp_path)
    assert caught.value.hint == "copy or download the missing files again"


def test_machine_that_converts_nothing_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    for name in ("config.json", "model.safetensors", "one.model"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ParallaxError, match=r"tokenizer.json missing") as caught:
        check_folder(tmp_path)
    assert "pip install parallax-tokenizers" in caught.value.hint
