from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session

from parallax_core.api import LayerRange, ParallaxError, silent
from parallax_core.builtin import plugin as builtin_plugin
from parallax_core.checkpoint.reader import find_missing, find_names
from parallax_core.models.catalog import Catalog
from parallax_core.models.layer_fetch import LayerFetcher
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_source_hub import plugin as hub_plugin
from tests.conformance.test_model import CONFIG
from tests.support.fakehub import FakeHub
from tests.support.tinyhub import make_weights
from tests.unit.models.test_stage_tensors import make_plugin

MODEL = "tiny/model"
SIZES = {"embedding": 200_000, "last": 500, "rotary": 200_000}
SIZES |= {f"layer.{index}.{part}": 200_000 for index in range(3) for part in ("mix", "norm")}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        add(hub)
        yield hub
        close_session()


def add(hub: FakeHub, **changes: object) -> None:
    config = json.dumps(CONFIG | {"tied": True} | changes).encode()
    weights = make_weights(dict(sorted(SIZES.items())))
    hub.add(MODEL, {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": weights})


def make_fetcher(*, with_adapter: bool = True) -> LayerFetcher:
    record = PluginRecord(name="core", module="core", distribution="core", version="1", state="loaded")
    hub = PluginRecord(name="hub", module="hub", distribution="hub", version="1", state="loaded")
    host = PluginHost([(record, builtin_plugin), (hub, hub_plugin), *([make_plugin()] if with_adapter else [])])
    return LayerFetcher(host, Catalog(host))


def list_fetched(folder: Path) -> set[str]:
    return set(find_names(folder) - find_missing(folder))


@pytest.mark.parametrize(
    ("layers", "ends"), [((0, 1), {"embedding"}), ((1, 2), set()), ((2, 3), {"embedding", "last"})]
)
def test_stage_fetches_what_the_adapter_says_it_is_made_of(layers: tuple[int, int], ends: set[str]) -> None:
    folder = make_fetcher().fetch(MODEL, LayerRange(*layers), silent).path
    fetched = list_fetched(folder)
    assert fetched >= {f"layer.{layers[0]}.mix", f"layer.{layers[0]}.norm"} | ends
    others = {f"layer.{index}.{part}" for index in range(3) for part in ("mix", "norm") if index != layers[0]}
    assert not fetched & (others | {"rotary"})


@pytest.mark.parametrize("layers", [None, LayerRange(0, 3)])
def test_all_layers_are_the_whole_model(layers: LayerRange | None) -> None:
    folder = make_fetcher().fetch(MODEL, layers, silent).path
    assert list_fetched(folder) == SIZES.keys()


@pytest.mark.parametrize("changes", [{"architectures": ["Stranger"]}, {"rotation": "twice"}])
def test_whole_model_is_fetched_where_no_adapter_knows_it_and_that_is_said_once(
    hub: FakeHub, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    add(hub, **changes)
    caplog.set_level(logging.WARNING)
    fetcher = make_fetcher()
    for layers in (LayerRange(1, 2), LayerRange(2, 3)):
        assert list_fetched(fetcher.fetch(MODEL, layers, silent).path) == SIZES.keys()
    [said] = caplog.messages
    assert f"the whole model is fetched model={MODEL}" in said
    assert "layers 1-2" in said


def test_complete_model_needs_no_adapter_and_no_network(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    whole = make_fetcher().fetch(MODEL, None, silent)
    hub.stop()
    assert make_fetcher(with_adapter=False).fetch(MODEL, LayerRange(1, 2), silent) == whole
    assert caplog.messages == []


def test_folder_of_the_user_is_taken_as_it_is(tmp_path: Path) -> None:
    whole = make_fetcher().fetch(MODEL, None, silent)
    assert make_fetcher().fetch(str(whole.path), LayerRange(1, 2), silent).path == whole.path.resolve()


@pytest.mark.parametrize("layers", [None, LayerRange(0, 1)])
def test_model_that_a_check_refuses_is_not_fetched(hub: FakeHub, layers: LayerRange | None) -> None:
    seen: list[Path] = []

    def refuse(folder: Path) -> None:
        seen.append(folder)
        raise ParallaxError("it does not fit", "buy memory")

    with pytest.raises(ParallaxError, match="it does not fit"):
        make_fetcher().fetch(f"hf:{MODEL}", layers, silent, refuse)
    assert (seen[0] / "config.json").exists()
    assert "model.safetensors" not in hub.fetched()
