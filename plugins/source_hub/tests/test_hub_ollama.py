"""Models of Ollama are found by its manifests, and read where they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.api import ModelSource, ParallaxError, SourceContext, UnknownName, Unsupported, silent
from parallax_core.testing.partial_source import PartialSourceConformance
from parallax_source_hub.ollama import ADAPTER, MODEL, MOST_BYTES, OllamaName, OllamaSource, list_models
from tests.support.tinyllama import TinyLlama

TEMPLATE = "application/vnd.ollama.image.template"
OTHER = "sha256:" + "1" * 64


def write_manifest(store: Path, place: str, content: bytes) -> Path:
    path = store / "manifests" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def describe(*layers: tuple[str, str]) -> bytes:
    return json.dumps({"layers": [{"mediaType": kind, "digest": digest} for kind, digest in layers]}).encode()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with one file that two models share, and two names."""
    store = tmp_path / "store"
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    (store / "blobs").mkdir(parents=True)
    digest = "0" * 64
    TinyLlama().write(store / "blobs" / f"sha256-{digest}")
    content = describe((TEMPLATE, OTHER), (MODEL, f"sha256:{digest}"))
    write_manifest(store, "registry.ollama.ai/library/tiny/latest", content)
    write_manifest(store, "hf.co/tiny/model-GGUF/Q8_0", content)
    return store


@pytest.fixture
def source(tmp_path: Path) -> OllamaSource:
    return OllamaSource(SourceContext(folder=tmp_path / "ollama"))


@pytest.mark.usefixtures("store")
class TestOllama(PartialSourceConformance):
    known = ("tiny", "hf.co/tiny/model-GGUF:Q8_0")
    unknown = "other"
    impossible = "../up"

    def make_source(self, folder: Path) -> ModelSource:
        return OllamaSource(SourceContext(folder=folder))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("tiny", "registry.ollama.ai/library/tiny/latest"),
        ("me/tiny:1b", "registry.ollama.ai/me/tiny/1b"),
        ("hf.co/tiny/model:Q8_0", "hf.co/tiny/model/Q8_0"),
    ],
)
def test_name_is_that_of_ollama(name: str, place: str) -> None:
    found = OllamaName.parse(name)
    assert f"{found.host}/{found.owner}/{found.model}/{found.tag}" == place
    assert OllamaName.parse(str(found)) == found


def test_model_that_ollama_lacks_lists_those_it_has(store: Path, source: OllamaSource) -> None:
    with pytest.raises(UnknownName, match="Ollama has no model other:latest") as caught:
        source.fetch("other", silent)
    assert "it has hf.co/tiny/model-GGUF:Q8_0, tiny:latest" in caught.value.hint
    assert store.is_dir()


@pytest.mark.parametrize(
    "name", ["", ":x", "a/b/c/d", "../x", "a/../b", "a:..", "a:b/c", "/etc/passwd", "a:b:c", "a\\b", "tiny\n"]
)
def test_name_that_leads_out_of_the_store_is_refused(source: OllamaSource, name: str) -> None:
    with pytest.raises(UnknownName, match="is not a valid name"):
        source.find(name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"layers": [{"mediaType": 3, "digest": 3}]}',
        b" " * (MOST_BYTES + 1),
        describe((MODEL, "sha256:../../../../etc/passwd")),
        describe((MODEL, "sha256:" + "A" * 64)),
        describe((MODEL, "sha1:" + "0" * 64)),
        describe((MODEL, "sha256:" + "0" * 64 + "/../x")),
    ],
)
def test_damaged_manifest_is_refused(store: Path, source: OllamaSource, content: bytes) -> None:
    path = write_manifest(store, "registry.ollama.ai/library/bad/latest", content)
    with pytest.raises(ParallaxError, match=f"the manifest {path} is damaged"):
        source.fetch("bad", silent)
    assert source.stored_partial() == []


def test_model_that_cannot_be_read_is_refused_by_what_it_lacks(store: Path, source: OllamaSource) -> None:
    write_manifest(store, "registry.ollama.ai/library/tuned/latest", describe((MODEL, OTHER), (ADAPTER, OTHER)))
    write_manifest(store, "registry.ollama.ai/library/cloud/latest", describe((TEMPLATE, OTHER)))
    write_manifest(store, "registry.ollama.ai/library/gone/latest", describe((MODEL, OTHER)))
    for name, kind, text in (
        ("tuned", Unsupported, "adapter"),
        ("cloud", Unsupported, "no GGUF file"),
        ("gone", ParallaxError, "is not in"),
    ):
        with pytest.raises(kind, match=text):
            source.fetch(name, silent)


def test_models_are_listed_by_their_names(store: Path) -> None:
    write_manifest(store, "registry.ollama.ai/library/broken/latest", b"{")
    blob = store / "blobs" / f"sha256-{'0' * 64}"
    assert [(model.name, model.path) for model in list_models()] == [
        ("hf.co/tiny/model-GGUF:Q8_0", blob),
        ("tiny:latest", blob),
    ]
