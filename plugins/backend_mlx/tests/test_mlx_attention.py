"""Attention, gates, exponentials and the order of weights: the same numbers as mlx-lm's, computed otherwise."""

from __future__ import annotations

import math
import resource
from typing import Any

import pytest
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.quantized import QuantizedLinear
from mlx_lm.models import base, llama, switch_layers

from parallax_backend_mlx.attention import MANY, attend
from parallax_backend_mlx.cache_layout import Leaf, Part
from parallax_backend_mlx.cache_view import PagedView
from parallax_backend_mlx.exponential import LARGEST, exponentiate
from parallax_backend_mlx.malloc import keep_memory
from parallax_backend_mlx.page_arrays import PageArrays
from parallax_backend_mlx.page_index import RowRange, SlotMapping
from parallax_backend_mlx.patches import replace_functions
from parallax_backend_mlx.runtime import Embedding, KVCache, Linear, mx, plain_swiglu
from parallax_backend_mlx.swiglu import multiply_gate
from parallax_backend_mlx.transposed_weights import turn_weights

PART = Part((2, 8), mx.float32)


def make_view(starts: tuple[int, ...], columns: int = 1, window: int = 0) -> PagedView:
    """Return a view of rows with so many tokens after so many others, in pages of noise."""
    layer_cache = PageArrays(Leaf("full", (PART, PART)), 0, 4)
    layer_cache.grow(32 * len(starts))
    for index, array in enumerate(layer_cache.arrays):
        layer_cache.arrays[index] = mx.random.normal(array.shape)
    pages = [tuple(range(32 * row, 32 * row + 32)) for row in range(len(starts))]
    row_ranges = [RowRange(start, columns, 0, part) for start, part in zip(starts, pages, strict=True)]
    return PagedView(layer_cache, SlotMapping(row_ranges, 4, window))


@pytest.mark.parametrize("starts", [(0,), (13,), (13, 13), (5, 30, 0)])
@pytest.mark.parametrize("heads", [2, 6])
def test_decode_attends_as_in_mlx_lm(starts: tuple[int, ...], heads: int) -> None:
    view = make_view(starts)
    fresh = mx.random.normal((len(starts), 2, 1, 8))
    keys, values = view.update_and_fetch(fresh, fresh * 2)
    queries = mx.random.normal((len(starts), heads, 1, 8))
    mask = view.make_mask(1)
    assert not isinstance(mask, str)
    found = attend(queries, keys, values, view, 0.3, mask)
    expected = base.scaled_dot_product_attention(queries, keys, values, KVCache(), 0.3, mask)  # type: ignore[no-untyped-call]
    assert found.shape == expected.shape
    assert mx.allclose(found, expected, atol=1e-5).item()


@pytest.mark.parametrize(("starts", "window"), [((0,), 0), ((70,), 0), ((50, 60), 0), ((60, 60), 20)])
@pytest.mark.parametrize("heads", [2, 6])
def test_prefill_attends_as_in_mlx_lm(starts: tuple[int, ...], window: int, heads: int) -> None:
    columns = 50
    view = make_view(starts, columns, window)
    fresh = mx.random.normal((len(starts), 2, columns, 8))
    keys, values = view.update_and_fetch(fresh, fresh * 2)
    queries = 3 * mx.random.normal((len(starts), heads, columns, 8))
    mask = view.make_mask(columns)
    assert isinstance(mask, str) == (len(set(starts)) == 1 and not window), "masks of both forms are tried"
    found = attend(queries, keys, values, view, 0.8, mask)
    expected = base.scaled_dot_product_attention(queries, keys, values, KVCache(), 0.8, mask)  # type: ignore[no-untyped-call, arg-type]
    assert mx.allclose(found, expected, atol=1e-5).item()


def test_prefill_in_the_tests_is_large_enough_for_our_softmax() -> None:
    assert MANY <= 6 * 50 * (50 + 50)


def test_padding_is_not_attended_to() -> None:
    """What another row has where this one has nothing changes nothing."""
    view = make_view((3, 20))
    queries = mx.random.normal((2, 6, 1, 8))
    keys = mx.random.normal((2, 2, 21, 8))
    first = attend(queries, keys, keys, view, 1.0, view.make_mask(1))
    keys[0, :, 4:] = 1000.0
    assert mx.array_equal(attend(queries, keys, keys, view, 1.0, view.make_mask(1)), first).item()


def test_model_files_call_ours() -> None:
    replace_functions()
    replace_functions()
    assert vars(llama)["scaled_dot_product_attention"] is attend
    assert vars(llama)["swiglu"] is vars(switch_layers)["swiglu"] is multiply_gate


def raise_to(powers: list[float]) -> list[float]:
    """Return e to these powers."""
    found: Any = exponentiate(mx.array(powers)).tolist()
    return list(found)


def test_exponential_is_right_to_the_last_bits() -> None:
    x = [number / 7 for number in range(-87 * 7, 88 * 7)]
    errors = [abs(each / math.exp(of) - 1) for each, of in zip(raise_to(x), x, strict=True)]
    assert max(error for error, of in zip(errors, x, strict=True) if abs(of) < 1) < 3e-7
    assert max(errors) < 1e-5


def test_exponential_of_extremes_is_the_nearest_there_is() -> None:
    nothing, least, one, most, nan = raise_to([-math.inf, -200.0, 0.0, LARGEST, math.nan])
    assert 0 < nothing == least < 1.2e-38
    assert one == 1
    assert 1e38 < most < math.inf
    assert math.isnan(nan)


@pytest.mark.parametrize("shape", [(5,), (1, 1, 64), (3, 7, 64)])
def test_gate_multiplies_as_in_mlx_lm(shape: tuple[int, ...]) -> None:
    gate, x = 20 * mx.random.normal(shape), mx.random.normal(shape)
    found = multiply_gate(gate, x)
    assert found.shape == shape
    assert mx.allclose(found, plain_swiglu(gate, x), rtol=1e-6, atol=1e-6).item()
    assert mx.isnan(multiply_gate(gate * math.nan, x)).all().item()


def test_gate_of_smaller_floats_is_left_to_mlx_lm() -> None:
    gate = mx.random.normal((4, 8)).astype(mx.bfloat16)
    assert mx.array_equal(multiply_gate(gate, gate), plain_swiglu(gate, gate)).item()


def test_memory_that_is_freed_is_kept_for_the_next_array() -> None:
    assert keep_memory()
    numbers = mx.ones((4, 1024, 1024))
    mx.eval(numbers + 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        mx.eval(numbers + 1)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize()
    assert taken < 5 * numbers.nbytes, "the kernel cleared the same memory again and again"


def test_turned_weights_multiply_to_the_same() -> None:
    model = Sequential(Embedding(50, 64), Linear(64, 128), QuantizedLinear(128, 32))  # type: ignore[no-untyped-call]
    tokens = mx.array([[3, 49, 0]])
    expected, shapes = model(tokens), [layer.weight.shape for layer in model.layers]
    turn_weights(model)
    assert [layer.weight.shape for layer in model.layers] == shapes
    assert mx.allclose(model(tokens), expected, atol=1e-5).item()
    assert memoryview(model.layers[1].weight).strides == (4, 128 * 4)
