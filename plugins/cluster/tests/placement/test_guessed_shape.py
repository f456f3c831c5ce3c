from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.demand import measure_demand, weigh_layers
from parallax_cluster.placement.guessed_shape import guess_shape, read_count
from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange


@pytest.mark.parametrize(
    ("params", "num_layers", "active", "width"),
    [(8_030_000_000, 32, None, 4096), (70_600_000_000, 80, None, 8192), (32_800_000_000, 64, None, 5120)],
)
def test_width_is_near_that_of_published_models(params: int, num_layers: int, active: int | None, width: int) -> None:
    assert guess_shape(params, num_layers, active).hidden_size == pytest.approx(width, rel=0.25)


@given(st.integers(10**8, 10**12), st.integers(1, 120), st.none() | st.floats(0.02, 1))
def test_weights_are_those_that_were_given_and_a_token_meets_its_share(
    params: int, num_layers: int, share: float | None
) -> None:
    active = None if share is None else int(params * share)
    shape = guess_shape(params, num_layers, active)
    demand = measure_demand(shape, 2.0)
    assert weigh_layers(demand, LayerRange(0, num_layers)) == pytest.approx(2 * params, rel=1e-3)
    met = sum(layer.active_weights for layer in shape.layers) + 2 * shape.before_weights
    assert met == pytest.approx(active or params, rel=0.12)
    assert all(0 < layer.active_weights <= layer.weights for layer in shape.layers)
    assert all(0 <= layer.experts <= layer.weights for layer in demand.layers)


def test_keys_and_values_are_those_of_eight_heads_and_no_wider_than_the_layers() -> None:
    assert {layer.kv_width for layer in guess_shape(8_030_000_000, 32).layers} == {2 * 8 * 128}
    small = guess_shape(100_000_000, 32)
    assert {layer.kv_width for layer in small.layers} == {2 * round(small.hidden_size / 2)}


def test_more_than_all_cannot_be_met() -> None:
    with pytest.raises(UsageError, match="--active is 9,000,000,000, more than --params"):
        guess_shape(8_000_000_000, 32, 9_000_000_000)


@pytest.mark.parametrize(
    ("text", "number"), [("24B", 24 * 10**9), ("1.5b", 1_500_000_000), ("350 M", 350 * 10**6), ("1T", 10**12)]
)
def test_counts_are_read_as_people_write_them(text: str, number: int) -> None:
    assert read_count(text, "--params") == number


@pytest.mark.parametrize("text", ["", "x", "B", "-1B", "0B", "5", "9" * 13, "1000000T", "1e9"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--params is ") as caught:
        read_count(text, "--params")
    assert caught.value.hint
