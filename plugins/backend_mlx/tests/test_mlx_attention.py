"""Attention of decodes, and the order of weights: the same numbers as mlx-lm's, computed otherwise."""

from __future__ import annotations

import pytest
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.quantized import QuantizedLinear
from mlx_lm.models import base, llama

from parallax_backend_mlx.attention import attend, install_attention
from parallax_backend_mlx.layout import Leaf, Part
from parallax_backend_mlx.pages import Bank
from parallax_backend_mlx.places import Places, Stretch
from parallax_backend_mlx.runtime import Embedding, KVCache, Linear, mx
from parallax_backend_mlx.turn import turn_weights
from parallax_backend_mlx.view import PagedView

PART = Part((2, 8), mx.float32)


def make_view(starts: tuple[int, ...]) -> PagedView:
    """Return a view of rows with one token after so many others, in pages of noise."""
    bank = Bank(Leaf("full", (PART, PART)), 0, 4)
    bank.grow(8 * len(starts))
    for index, array in enumerate(bank.arrays):
        bank.arrays[index] = mx.random.normal(array.shape)
    pages = [tuple(range(8 * row, 8 * row + 8)) for row in range(len(starts))]
    stretches = [Stretch(start, 1, 0, part) for start, part in zip(starts, pages, strict=True)]
    return PagedView(bank, Places(stretches, 4))


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


def test_padding_is_not_attended_to() -> None:
    """What another row has where this one has nothing changes nothing."""
    view = make_view((3, 20))
    queries = mx.random.normal((2, 6, 1, 8))
    keys = mx.random.normal((2, 2, 21, 8))
    first = attend(queries, keys, keys, view, 1.0, view.make_mask(1))
    keys[0, :, 4:] = 1000.0
    assert mx.array_equal(attend(queries, keys, keys, view, 1.0, view.make_mask(1)), first).item()


def test_model_files_call_ours() -> None:
    install_attention()
    install_attention()
    assert vars(llama)["scaled_dot_product_attention"] is attend


def test_turned_weights_multiply_to_the_same() -> None:
    model = Sequential(Embedding(50, 64), Linear(64, 128), QuantizedLinear(128, 32))  # type: ignore[no-untyped-call]
    tokens = mx.array([[3, 49, 0]])
    expected, shapes = model(tokens), [layer.weight.shape for layer in model.layers]
    turn_weights(model)
    assert [layer.weight.shape for layer in model.layers] == shapes
    assert mx.allclose(model(tokens), expected, atol=1e-5).item()
    assert memoryview(model.layers[1].weight).strides == (4, 128 * 4)
