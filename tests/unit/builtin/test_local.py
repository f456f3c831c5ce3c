from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError, Unsupported
from parallax_core.builtin.local import LocalSource
from parallax_core.contracts.progress import silent
from parallax_core.contracts.source import SourceContext


@pytest.fixture
def source(tmp_path: Path) -> LocalSource:
    return LocalSource(SourceContext(folder=tmp_path / "unused"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    return folder


def test_fetch_returns_the_folder_itself(source: LocalSource, model: Path) -> None:
    found = source.fetch(str(model), silent)
    assert (found.path, found.ref) == (model, str(model))


def test_fetch_understands_relative_paths_and_tilde(
    source: LocalSource, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    monkeypatch.setenv("HOME", str(model.parent))
    assert source.fetch("model", silent).path == model
    assert source.fetch("./model/", silent).path == model
    assert source.fetch("~/model", silent).path == model


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_fetch_names_what_is_missing(source: LocalSource, model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(ParallaxError, match=r"\*?\.safetensors missing" if "model" in name else f"{name} missing"):
        source.fetch(str(model), silent)


def test_fetch_names_everything_that_is_missing(source: LocalSource, tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match=r"config.json, tokenizer.json, \*.safetensors missing") as caught:
        source.fetch(str(tmp_path), silent)
    assert "a model is a folder with" in caught.value.hint


def test_fetch_names_shards_of_the_index_that_are_missing(source: LocalSource, model: Path) -> None:
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ParallaxError, match=r": b.safetensors missing"):
        source.fetch(str(model), silent)
    (model / "b.safetensors").write_bytes(b"x")
    assert source.fetch(str(model), silent).path == model


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[]", "a JSON list"), ("\x80", "JSON")])
def test_fetch_refuses_a_damaged_configuration(source: LocalSource, model: Path, text: str, message: str) -> None:
    (model / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ParallaxError, match=message):
        source.fetch(str(model), silent)


@pytest.mark.parametrize(("name", "word"), [("m.gguf", "GGUF"), ("pytorch_model.bin", "pickled"), ("m.pt", "pickled")])
def test_fetch_says_what_to_do_about_other_weights(source: LocalSource, model: Path, name: str, word: str) -> None:
    (model / "model.safetensors").rename(model / name)
    with pytest.raises(ParallaxError) as caught:
        source.fetch(str(model), silent)
    assert word in caught.value.hint


def test_fetch_says_what_to_do_about_a_file(source: LocalSource, model: Path) -> None:
    gguf = model / "m.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ParallaxError, match="is a GGUF file") as caught:
        source.fetch(str(gguf), silent)
    assert f"gguf:{gguf}" in caught.value.hint
    with pytest.raises(ParallaxError, match="is a file") as caught:
        source.fetch(str(model / "config.json"), silent)
    assert str(model) in caught.value.hint


@pytest.mark.parametrize("name", ["no/such/folder", "\0", "~nobody-of-this-name/x"])
def test_fetch_refuses_paths_that_lead_nowhere(source: LocalSource, name: str) -> None:
    with pytest.raises(ParallaxError) as caught:
        source.fetch(name, silent)
    assert caught.value.hint


def test_nothing_is_stored_and_nothing_removed(source: LocalSource, model: Path) -> None:
    assert source.stored() == ()
    with pytest.raises(Unsupported, match="never deleted") as caught:
        source.remove(str(model))
    assert caught.value.hint
    assert model.is_dir()
