from __future__ import annotations

import dataclasses

import pytest

from parallax_cluster.placement.demand import measure_demand, weigh_layers
from parallax_core.contracts.backend import LoadedSize
from parallax_core.contracts.model import LayerShape, ModelShape, Plane, TokenUse
from parallax_core.contracts.placement import LayerDemand, ModelDemand
from parallax_core.contracts.stage import LayerRange

LAYER = LayerShape(kind="full", weights=1000, active_weights=1000, kv_width=64)
SHAPE = ModelShape(
    hidden_size=32,
    vocab_size=10,
    context_length=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    layers=(LAYER,) * 3,
    before_weights=320,
    after_weights=352,
    is_tied=False,
)
PLAIN = LayerDemand(weights=2000, read=2000, flops=2000, context_flops=4 * 4 * 16, kv=128)


def test_ends_are_part_of_the_first_and_the_last_layer() -> None:
    last = dataclasses.replace(PLAIN, weights=2704, read=2704, draw_flops=704)
    layers = (dataclasses.replace(PLAIN, weights=2640), PLAIN, last)
    assert measure_demand(SHAPE) == ModelDemand(layers=layers, hidden=64, borders=(64, 64))


def test_model_of_one_layer_has_hidden_states_all_the_same() -> None:
    assert measure_demand(dataclasses.replace(SHAPE, layers=(LAYER,))).hidden == 64


def test_tied_embedding_is_on_both_ends_and_shared() -> None:
    demand = measure_demand(dataclasses.replace(SHAPE, after_weights=32, is_tied=True))
    assert (demand.layers[0].weights, demand.layers[-1].weights, demand.shared) == (2640, 2704, 640)
    assert demand.layers[-1].draw_flops == 640


def test_what_both_ends_share_counts_once_where_all_layers_are_together() -> None:
    demand = measure_demand(dataclasses.replace(SHAPE, after_weights=32, is_tied=True))
    whole, first, rest, last = (weigh_layers(demand, LayerRange(*ends)) for ends in ((0, 3), (0, 2), (1, 3), (2, 3)))
    assert (first, rest, last) == (4640, 4704, 2704)
    assert whole == first + last - demand.shared


def test_memory_kept_for_adapters_is_taken_and_not_read() -> None:
    size = LoadedSize(layers=(2000,) * 3, before=640, after=704)
    plain, kept = (measure_demand(SHAPE, size=each) for each in (size, dataclasses.replace(size, adapters=(5, 6, 7))))
    more = [layer.weights - before.weights for layer, before in zip(kept.layers, plain.layers, strict=True)]
    assert more == [5, 6, 7]
    assert [layer.read for layer in kept.layers] == [layer.read for layer in plain.layers]
    assert weigh_layers(kept, LayerRange(1, 3)) == size.weigh(LayerRange(1, 3)) + 13


def test_quantized_weights_take_fewer_bytes_and_as_many_flops() -> None:
    layer = measure_demand(SHAPE, weight_bytes=0.5).layers[1]
    assert (layer.weights, layer.read, layer.flops, layer.kv) == (500, 500, 2000, 128)


@pytest.mark.parametrize(("experts", "active"), [(8, 2), (128, 8), (4, 1)])
def test_bytes_of_experts_follow_from_their_numbers(experts: int, active: int) -> None:
    layer = dataclasses.replace(
        LAYER,
        weights=100 + 90 * experts,
        active_weights=100 + 90 * active,
        num_experts=experts,
        num_active_experts=active,
    )
    demand = measure_demand(dataclasses.replace(SHAPE, layers=(layer,) * 3)).layers[1]
    assert (demand.weights, demand.read, demand.experts) == (200 + 180 * experts, 200, 180 * experts)
    assert (demand.num_experts, demand.num_active_experts) == (experts, active)


def test_latent_window_and_state_have_their_own_costs_of_context() -> None:
    kinds = (
        LayerShape(kind="latent", weights=1, active_weights=1, kv_width=576),
        LayerShape(kind="window", weights=1, active_weights=1, kv_width=64, window=8),
        LayerShape(kind="state", weights=1, active_weights=1, state_width=100),
    )
    latent, window, state = measure_demand(dataclasses.replace(SHAPE, layers=kinds), value_bytes=4).layers
    assert (latent.context_flops, latent.kv) == (4 * 4 * 576, 2304)
    assert (window.context_flops, window.window) == (256, 8)
    assert (state.context_flops, state.kv, state.state) == (0, 0, 400)


def test_borders_have_the_bytes_that_cross_and_none_where_layers_stay_together() -> None:
    wide = dataclasses.replace(LAYER, gives=(Plane("hidden", (4, 32)), Plane("mix", (8,), "float32")))
    reader = dataclasses.replace(LAYER, kv_width=0, source=1)
    taker = dataclasses.replace(LAYER, takes=("hidden", "mix"))
    demand = measure_demand(dataclasses.replace(SHAPE, layers=(wide, taker, reader, LAYER)))
    assert demand.borders == (2 * 4 * 32 + 4 * 8, 0, 64)
    assert demand.hidden == 288


def test_keys_of_an_earlier_layer_are_read_and_not_kept() -> None:
    reader = dataclasses.replace(LAYER, kv_width=0, source=0)
    layers = measure_demand(dataclasses.replace(SHAPE, layers=(LAYER, reader, reader))).layers
    assert [(layer.kv, layer.borrowed_kv, layer.read_kv) for layer in layers] == [(128, 0, 128), *[(0, 128, 128)] * 2]


def test_tables_stay_in_their_files() -> None:
    table = dataclasses.replace(LAYER, weights=5000, table_weights=4000, tokens=TokenUse(has_embedding=True))
    layer = measure_demand(dataclasses.replace(SHAPE, layers=(LAYER, table, LAYER))).layers[1]
    assert (layer.weights, layer.read, layer.flops) == (2000, 2000, 2000)
