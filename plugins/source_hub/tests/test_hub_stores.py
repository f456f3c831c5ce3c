"""Models that other programs have downloaded are used where they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, UnknownName, silent
from parallax_core.api.source import find_missing
from parallax_source_hub.source import HubSource
from parallax_source_hub.stores import list_models
from tests.support.fakehub import FakeHub
from tests.support.tinyhub import LAYERED, MODEL, NAME, contents, make_stage, read_stage, split_layered
from tests.support.tinyhub import Stage as TinyStage
from tests.support.tinyllama import TinyLlama

COMMIT = "0123456789" * 4
GGUF = "model-Q8_0.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "me"))
    return tmp_path / "me"


def fill_cache(cache: Path, files: dict[str, bytes], revision: str = "main") -> Path:
    """Write a repository as huggingface_hub does: links to blobs, and the commit of a branch."""
    owner = cache / "models--tiny--model"
    snapshot = owner / "snapshots" / COMMIT
    for number, (name, content) in enumerate(files.items()):
        blob = owner / "blobs" / f"{number:064x}"
        link = snapshot / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(blob)
    (owner / "refs" / revision).parent.mkdir(parents=True)
    (owner / "refs" / revision).write_text(COMMIT)
    return snapshot


def list_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("variable", ["", "HF_HOME", "HF_HUB_CACHE"])
def test_model_in_the_cache_of_huggingface_hub_is_used_in_place(
    hub: FakeHub, source: HubSource, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    cache = {"": home / ".cache/huggingface/hub", "HF_HOME": home / "x/hub", "HF_HUB_CACHE": home / "y"}[variable]
    if variable:
        monkeypatch.setenv(variable, str(home / "x" if variable == "HF_HOME" else home / "y"))
    snapshot = fill_cache(cache, MODEL)
    before = list_bytes(home)
    for name in (NAME, f"{NAME}@{COMMIT}"):
        found = source.find(name)
        assert found is not None
        assert found.path == snapshot
        assert found.listed_weights == {"model.safetensors": f"{len(MODEL) - 1:064x}"}
        assert source.fetch(name, silent) == source.fetch_tensors(name, bool, silent) == found
    assert source.find(f"{NAME}@other") is None
    assert list_bytes(home) == before
    with pytest.raises(UnknownName, match="by another program"):
        source.remove(NAME)
    assert hub.requests == []


def test_model_of_which_a_part_is_in_the_cache_is_downloaded(hub: FakeHub, source: HubSource, home: Path) -> None:
    files = split_layered(3)
    hub.add(NAME, files)
    fill_cache(home / ".cache/huggingface/hub", {name: files[name] for name in sorted(files)[:-2]})
    assert contents(source.fetch(NAME, silent).path) == files


def test_links_out_of_the_cache_are_not_followed(hub: FakeHub, source: HubSource, home: Path) -> None:
    snapshot = fill_cache(home / ".cache/huggingface/hub", MODEL)
    (home / "secret").write_bytes(b"{}")
    (snapshot / "generation_config.json").unlink()
    (snapshot / "generation_config.json").symlink_to(home / "secret")
    assert source.find(NAME) is None
    refs = snapshot.parents[1] / "refs"
    (refs.parent / "elsewhere").write_text(COMMIT)
    assert source.find(f"{NAME}@../elsewhere") is None
    (refs / "main").write_text("../../../../")
    assert source.find(NAME) is None
    assert hub.requests == []


def test_folder_of_lm_studio_is_used_in_place(source: HubSource, home: Path) -> None:
    folder = home / ".lmstudio/models/tiny/model"
    folder.mkdir(parents=True)
    for name, content in LAYERED.items():
        (folder / name).write_bytes(content)
    stage = TinyStage(0, 10)
    model = source.fetch_tensors(NAME, stage.wants, silent)
    assert model.path == folder
    assert read_stage(folder, stage) == make_stage(stage)


@pytest.mark.parametrize("program", ["huggingface_hub", "llama.cpp", "LM Studio"])
def test_gguf_file_of_another_program_is_read_where_it_lies(
    hub: FakeHub, source: HubSource, home: Path, tmp_path: Path, program: str
) -> None:
    content = TinyLlama().write(tmp_path / "x.gguf").read_bytes()
    places = {
        "llama.cpp": ".cache/llama.cpp/tiny_model_model-Q8_0.gguf",
        "LM Studio": f".lmstudio/models/{NAME}/{GGUF}",
    }
    if program == "huggingface_hub":
        fill_cache(home / ".cache/huggingface/hub", {GGUF: content})
    else:
        (home / places[program]).parent.mkdir(parents=True)
        (home / places[program]).write_bytes(content)
    before = list_bytes(home)
    part = source.fetch_tensors(f"{NAME}:Q8_0", lambda name: ".layers.1." in name, silent)
    assert "model.layers.0.mlp.up_proj.weight" in find_missing(part.path)
    assert "model.layers.1.mlp.up_proj.weight" not in find_missing(part.path)
    model = source.fetch(f"{NAME}:Q8_0", silent)
    assert model.path == part.path
    assert [each.name for each in source.stored()] == [f"{NAME}:Q8_0"]
    assert hub.requests == []
    source.remove(f"{NAME}:Q8_0")
    assert list_bytes(home) == before


def test_gguf_file_that_is_gone_is_downloaded(hub: FakeHub, source: HubSource, home: Path, tmp_path: Path) -> None:
    path = home / ".lmstudio/models" / NAME / GGUF
    path.parent.mkdir(parents=True)
    TinyLlama().write(path)
    hub.add(NAME, {GGUF: path.read_bytes()})
    source.fetch_without_weights(f"{NAME}:Q8_0", silent)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ParallaxError, match="damaged"):
        source.fetch(f"{NAME}:Q8_0", silent)
    path.unlink()
    assert json.loads((source.fetch(f"{NAME}:Q8_0", silent).path / "config.json").read_text())["hidden_size"] == 32
    assert hub.fetched()


def test_models_of_other_programs_are_listed_where_they_lie(home: Path, tmp_path: Path, source: HubSource) -> None:
    content = TinyLlama().write(tmp_path / "x.gguf").read_bytes()
    snapshot = fill_cache(home / ".cache/huggingface/hub", MODEL | {GGUF: content})
    studio, llama = home / ".lmstudio/models/tiny/studio", home / ".cache/llama.cpp"
    for path in (studio / GGUF, studio / "half-Q4_0-00001-of-00002.gguf", llama / "o_n_e-GGUF_one-Q8_0.gguf"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (llama / "nobody.gguf").write_bytes(content)
    listed = {model.name: model.path for model in list_models()}
    assert listed == {
        NAME: snapshot,
        f"{NAME}:Q8_0": (snapshot / GGUF).resolve(),
        "tiny/studio:Q8_0": studio / GGUF,
        "o/n_e-GGUF:Q8_0": llama / "o_n_e-GGUF_one-Q8_0.gguf",
    }
    for name in listed:
        assert source.fetch_without_weights(name, silent).path.is_dir()


def test_nothing_is_listed_where_there_is_nothing(home: Path) -> None:
    assert not home.exists()
    assert list_models() == []
