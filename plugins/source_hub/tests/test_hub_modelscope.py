"""Models of ModelScope, by its HTTP API on a server of our own, and where its own library keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallax_core.api import ModelSource, ParallaxError, SourceContext, UnknownName, silent
from parallax_core.testing.partial_source import PartialSourceConformance
from parallax_source_hub.modelscope import ModelScopeSource, list_models
from parallax_source_hub.ollama import OllamaSource
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyhub import LAYERED, MODEL, NAME, Stage, contents, make_stage, read_stage, split_layered
from tests.support.tinyllama import TinyLlama


@pytest.fixture(autouse=True)
def scope(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    for name in ("MODELSCOPE_DOMAIN", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    hub.add(NAME, MODEL)
    return hub


@pytest.fixture
def source(tmp_path: Path) -> ModelScopeSource:
    return ModelScopeSource(SourceContext(folder=tmp_path / "ms"), pauses_s=(0, 0))


class TestModelScope(PartialSourceConformance):
    known = (NAME, "tiny/other@v1")
    unknown = "no/such"
    impossible = "../up"
    hub: FakeHub

    @pytest.fixture(autouse=True)
    def add_models(self, scope: FakeHub) -> None:
        scope.add(NAME, LAYERED)
        scope.add("tiny/other", MODEL, branch="v1")
        self.hub = scope

    def make_source(self, folder: Path) -> ModelSource:
        return ModelScopeSource(SourceContext(folder=folder), pauses_s=(0, 0))

    @contextmanager
    def go_offline(self) -> Iterator[None]:
        before = len(self.hub.requests)
        yield
        assert len(self.hub.requests) == before, "there were requests"


def test_stage_fetches_its_layers_as_ranges_over_a_broken_line(scope: FakeHub, source: ModelScopeSource) -> None:
    scope.add(NAME, split_layered(3))
    scope.faults.append(Fault("/repo", status=503))
    scope.faults.append(Fault(".safetensors", cut_after=100_000))
    stage = Stage(0, 10)
    found = source.fetch_tensors(NAME, stage.wants, silent)
    assert found.ref == f"ms:{NAME}"
    assert read_stage(found.path, stage) == make_stage(stage)
    assert scope.num_sent < sum(map(len, LAYERED.values()))
    assert contents(source.fetch(NAME, silent).path) == split_layered(3)


@pytest.mark.parametrize("kind", [ModelScopeSource, OllamaSource])
def test_source_that_cannot_search_does_not_say_it_can(kind: type[ModelSource]) -> None:
    assert not hasattr(kind, "search")


def test_gguf_file_becomes_a_folder(scope: FakeHub, source: ModelScopeSource, tmp_path: Path) -> None:
    scope.add("tiny/model-GGUF", {"model-Q8_0.gguf": TinyLlama().write(tmp_path / "x.gguf").read_bytes()})
    found = source.fetch("tiny/model-GGUF:Q8_0", silent)
    assert (found.path / "config.json").exists()
    assert [model.name for model in source.stored()] == ["tiny/model-GGUF:Q8_0"]


def test_file_of_another_commit_is_seen_by_its_digest(scope: FakeHub, source: ModelScopeSource) -> None:
    scope.faults.append(Fault(".safetensors", corrupt=True, times=9))
    with pytest.raises(ParallaxError, match=r"model\.safetensors"):
        source.fetch(NAME, silent)
    assert source.stored() == []


@pytest.mark.parametrize(
    ("name", "prepare", "said"),
    [
        (f"{NAME}@v9", lambda hub: None, ("has no revision 'v9'", "branches and tags")),
        ("no/such", lambda hub: None, ("has no model no/such", "MODELSCOPE_API_TOKEN")),
        ("tiny/mine", lambda hub: hub.add("tiny/mine", MODEL, token="key"), ("refuses access", "_TOKEN")),
        (NAME, lambda hub: hub.faults.append(Fault("/files", status=500, times=9)), ("HTTP 500", "try again")),
        (NAME, lambda hub: hub.stop(), ("cannot reach", "MODELSCOPE_ENDPOINT")),
    ],
)
def test_error_says_what_is_wrong(
    scope: FakeHub, source: ModelScopeSource, name: str, prepare: Callable[[FakeHub], None], said: tuple[str, str]
) -> None:
    prepare(scope)
    with pytest.raises(ParallaxError, match=said[0]) as caught:
        source.fetch(name, silent)
    assert said[1] in caught.value.hint


def test_token_of_the_user_opens_a_private_model(
    scope: FakeHub, source: ModelScopeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope.add("tiny/mine", MODEL, token="key")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "key")
    assert contents(source.fetch("tiny/mine", silent).path) == MODEL
    assert not any("authorization" in request.headers for request in scope.storage_requests())


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("MODELSCOPE_ENDPOINT", "modelscope.cn", "not a web address"), ("PARALLAX_OFFLINE", "1", "forbids downloading")],
)
def test_setting_that_allows_no_download_is_named(
    source: ModelScopeSource, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ParallaxError, match=words):
        source.fetch(NAME, silent)


@pytest.mark.parametrize("place", ["hub/models/tiny/model-2___5", "hub/tiny/model-2___5"])
def test_model_of_its_own_library_is_used_in_place(
    scope: FakeHub, source: ModelScopeSource, tmp_path: Path, place: str
) -> None:
    folder = tmp_path / "modelscope" / place
    folder.mkdir(parents=True)
    for name, content in MODEL.items():
        (folder / name).write_bytes(content)
    found = source.fetch("tiny/model-2.5", silent)
    assert (found.path, found.ref) == (folder, "ms:tiny/model-2.5")
    assert [(model.name, model.path) for model in list_models()] == [("tiny/model-2.5", folder)]
    assert scope.requests == []
    with pytest.raises(UnknownName, match="by another program"):
        source.remove("tiny/model-2.5")
