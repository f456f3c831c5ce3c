from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallax_core.api import LayerRange, ModelSpec, ParallaxError, Part, Ref, TokenUse, hookimpl
from parallax_core.models.stage_tensors import (
    StageTensors,
    check_present,
    choose_tensors,
    find_stored_layers,
    find_whole_layers,
    format_layers,
)
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.model import write_checkpoint
from tests.conformance.test_model import ADAPTER, CONFIG

LAYERS = {f"layer.{index}.{name}" for index in range(3) for name in ("mix", "norm")}
ENDS = {"embedding", "last", "head"}
SHAPE = ADAPTER.read_shape(CONFIG)


def choose(start: int, stop: int, *, tied: bool = False) -> set[str]:
    tensors = StageTensors(ADAPTER, LayerRange(start, stop), replace(SHAPE, is_tied=tied))
    return {name for name in LAYERS | ENDS | {"rotary"} if tensors.wants(name)}


@pytest.mark.parametrize("tied", [False, True])
def test_stage_has_its_layers_and_the_ends_it_is_at(*, tied: bool) -> None:
    assert choose(0, 1, tied=tied) == {"embedding", "layer.0.mix", "layer.0.norm"}
    assert choose(1, 2, tied=tied) == {"layer.1.mix", "layer.1.norm"}
    head = {"last", "head", "layer.2.mix", "layer.2.norm"}
    assert choose(2, 3, tied=tied) == (head | {"embedding"} if tied else head)
    assert choose(0, 3, tied=tied) == LAYERS | ENDS


class Shared(type(ADAPTER)):  # type: ignore[misc]
    """An adapter of models with a table that every layer has a slice of."""

    def find_part(self, tensor: str) -> Part:
        return "every" if tensor == "table" else super().find_part(tensor)


def test_every_stage_has_what_all_layers_share_and_the_embedding_that_a_layer_looks_up() -> None:
    middle = StageTensors(Shared(), LayerRange(1, 2), SHAPE)
    assert middle.wants("table")
    assert not middle.wants("embedding")
    layers = list(SHAPE.layers)
    layers[1] = replace(layers[1], tokens=TokenUse(has_embedding=True))
    shape = replace(SHAPE, layers=tuple(layers))
    assert StageTensors(Shared(), LayerRange(1, 2), shape).wants("embedding")
    assert not StageTensors(Shared(), LayerRange(2, 3), shape).wants("embedding")


def make_plugin() -> tuple[PluginRecord, object]:
    """Return a plugin with the adapter of a made-up family."""
    adapter: Ref[object] = Ref("tests.conformance.test_model:ADAPTER")
    spec = ModelSpec(name="tiny", summary="s", architectures=("TinyForCausalLM",), adapter=adapter)  # type: ignore[arg-type]

    @hookimpl
    def parallax_register_models() -> list[ModelSpec]:
        return [spec]

    record = PluginRecord(name="tiny", module="tiny", distribution="d", version="1", state="loaded")
    return record, SimpleNamespace(parallax_register_models=parallax_register_models)


def make_host() -> PluginHost:
    return PluginHost([make_plugin()])


def test_tensors_are_chosen_by_the_adapter_of_the_family() -> None:
    chosen = choose_tensors(make_host(), CONFIG, LayerRange(1, 2))
    assert chosen == StageTensors(ADAPTER, LayerRange(1, 2), SHAPE)
    whole = choose_tensors(make_host(), CONFIG, None)
    assert whole == StageTensors(ADAPTER, LayerRange(0, 3), SHAPE)


def test_nothing_is_chosen_where_no_adapter_reads_the_model() -> None:
    assert choose_tensors(PluginHost([]), CONFIG, None) is None
    assert choose_tensors(make_host(), CONFIG | {"rotation": "twice"}, None) is None


def test_layers_that_are_not_here_are_named(tmp_path: Path) -> None:
    tensors = StageTensors(ADAPTER, LayerRange(0, 3), SHAPE)
    check_present(tmp_path, tensors, ["rotary"])
    with pytest.raises(
        ParallaxError, match=r"layers 0-3 of .* not on this machine are layers 0-1,2-3 and the embedding"
    ) as caught:
        check_present(tmp_path, tensors, ["layer.0.mix", "layer.2.norm", "layer.2.mix", "embedding"])
    assert "parallax models pull" in caught.value.hint
    with pytest.raises(ParallaxError, match="not on this machine are the final norm and the head"):
        check_present(tmp_path, tensors, ["head"])
    middle = StageTensors(ADAPTER, LayerRange(1, 2), SHAPE)
    check_present(tmp_path, middle, ["layer.0.mix", "layer.2.norm", "embedding", "head"])


def test_layer_is_whole_with_its_last_tensor() -> None:
    assert find_whole_layers(ADAPTER, LAYERS | ENDS, []) == {0, 1, 2}
    assert find_whole_layers(ADAPTER, LAYERS | ENDS, ["layer.1.mix", "head"]) == {0, 2}


def test_stored_layers_are_the_longest_run_that_is_whole(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", CONFIG, dict.fromkeys(sorted(LAYERS | ENDS), (4,)))
    assert find_stored_layers(make_host(), folder) == LayerRange(0, 3)
    assert find_stored_layers(PluginHost([]), folder) is None
    punch_holes(folder, lambda name: not name.startswith("layer.0"))
    assert find_stored_layers(make_host(), folder) == LayerRange(1, 3)
    assert find_stored_layers(make_host(), tmp_path) is None


@pytest.mark.parametrize(
    ("layers", "text"), [([], ""), ([3], "3-4"), (range(12), "0-12"), ([5, 0, 1, 4, 9], "0-2,4-6,9-10")]
)
def test_layers_are_written_as_options_take_them(layers: list[int], text: str) -> None:
    assert format_layers(layers) == text
