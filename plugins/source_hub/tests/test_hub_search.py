"""Models of the hub are found by a part of their names, with the sizes of their formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, SourceContext, UnknownName
from parallax_source_hub.search import SearchableHub
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyhub import MODEL, UNWANTED, WEIGHTS


@pytest.fixture
def source(folder: Path) -> SearchableHub:
    return SearchableHub(SourceContext(folder=folder))


def test_models_with_weights_are_found_by_a_part_of_their_names(hub: FakeHub, source: SearchableHub) -> None:
    hub.add("Org/Tiny", {**MODEL, "config.json": b'{"architectures": ["LlamaForCausalLM"]}'}, token="hf_x")
    hub.add("org/tiny-gguf", {"tiny-Q4_K_M.gguf": b"GGUF"})
    hub.add("org/tiny-pickled", {"pytorch_model.bin": b"pickled"})
    hub.add("org/other", MODEL)
    found = {each["name"]: each for each in source.search("tiny", 10)}
    assert list(found) == ["Org/Tiny", "org/tiny-gguf"]
    assert found["Org/Tiny"] == {
        "name": "Org/Tiny",
        "downloads": 7,
        "parameters": 1000,
        "is_gated": True,
        "architectures": ["LlamaForCausalLM"],
    }
    assert found["org/tiny-gguf"]["architectures"] == []
    assert [each["name"] for each in source.search("tiny", 1)] == ["Org/Tiny"]


def test_formats_have_the_sizes_of_their_weights(hub: FakeHub, source: SearchableHub) -> None:
    hub.add(
        "org/tiny", MODEL | UNWANTED | {"tiny-Q8_0-00001-of-00002.gguf": b"12", "tiny-Q8_0-00002-of-00002.gguf": b"3"}
    )
    assert source.list_formats("org/tiny") == {
        "org/tiny": len(WEIGHTS),
        "org/tiny:Q4": 4,
        "org/tiny:Q8_0": 3,
    }
    with pytest.raises(UnknownName, match="has no model org/none"):
        source.list_formats("org/none")


def test_hub_that_cannot_be_asked_is_named(
    hub: FakeHub, source: SearchableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.append(Fault("/api/models", status=500))
    with pytest.raises(ParallaxError, match="HTTP 500"):
        source.search("x", 1)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ParallaxError, match="offline"):
        source.search("x", 1)
