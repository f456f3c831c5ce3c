"""Weights of AWQ against mlx-lm's reader, and of GPTQ against its published definition."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import _transform_awq_weights

from parallax_core.api import ParallaxError, Tensor, Unsupported
from parallax_formats import Grid, Matrix, group_tensors
from parallax_formats.numbers import Array

ROWS, INPUTS, GROUP = 40, 96, 32


def store(array: Array) -> Tensor:
    return Tensor(str(array.dtype), array.shape, array.tobytes())


def draw(high: int, *shape: int) -> Array:
    return np.random.default_rng(5).integers(0, high, shape)


def test_awq_is_read_as_mlx_lm_reads_it() -> None:
    words = {
        "a.qweight": draw(2**32, INPUTS, ROWS // 8).astype(np.uint32).view(np.int32),
        "a.qzeros": draw(2**32, INPUTS // GROUP, ROWS // 8).astype(np.uint32).view(np.int32),
        "a.scales": (draw(100, INPUTS // GROUP, ROWS) / 64 + 0.1).astype(np.float32),
    }
    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    matrix = group_tensors({"quantization_config": settings}, {name: store(part) for name, part in words.items()})[
        "a.weight"
    ]
    made, _ = _transform_awq_weights({name: mx.array(part) for name, part in words.items()}, settings)
    wanted = np.array(mx.dequantize(made["a.weight"], made["a.scales"], made["a.biases"], GROUP, 4))
    assert matrix.shape == (ROWS, INPUTS)
    np.testing.assert_allclose(matrix.read(0, ROWS), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(matrix.read(3, 21), matrix.read(0, ROWS)[3:21])
    assert matrix.grid == Grid(4, GROUP)
    np.testing.assert_allclose(spread_codes(matrix, 3, 21), matrix.read(3, 21), rtol=1e-6, atol=1e-6)


def pack(codes: Array, bits: int) -> Array:
    """Return codes [in, out] as words [in * bits / 32, out], bit after bit, as AutoGPTQ's loops write them."""
    words = [[0] * codes.shape[1] for _ in range(len(codes) * bits // 32)]
    for row, values in enumerate(codes.tolist()):
        for column, value in enumerate(values):
            for bit in range(bits):
                place = row * bits + bit
                words[place // 32][column] |= (value >> bit & 1) << place % 32
    return np.array(words, np.uint32).view(np.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("ordered", [True, False])
def test_gptq(bits: int, version: str, ordered: bool) -> None:
    rows = 32
    codes, zeros = draw(2**bits, INPUTS, rows), draw(2**bits - 1, INPUTS // GROUP, rows)
    scales = (draw(100, INPUTS // GROUP, rows) / 64 + 0.1).astype(np.float16)
    order = np.arange(INPUTS) // GROUP
    parts = {"a.qweight": pack(codes, bits), "a.qzeros": pack(zeros.T, bits).T.copy(), "a.scales": scales}
    if not ordered:
        order = np.random.default_rng(1).permutation(order)
        parts["a.g_idx"] = order.astype(np.int32)
    config = {"quantization_config": {"quant_method": "gptq", "bits": bits, "checkpoint_format": version}}
    matrix = group_tensors(config, {name: store(part) for name, part in parts.items()})["a.weight"]
    wanted = (codes - zeros[order] - (version == "gptq")) * scales.astype(np.float32)[order]
    np.testing.assert_array_equal(matrix.read(0, rows), wanted.T.astype(np.float32))
    np.testing.assert_array_equal(matrix.read(3, 21), wanted.T[3:21].astype(np.float32))
    assert matrix.grid == (Grid(bits, GROUP) if ordered else None)
    if ordered:
        np.testing.assert_allclose(spread_codes(matrix, 3, 21), wanted.T[3:21], rtol=1e-6, atol=1e-6)


def spread_codes(matrix: Matrix, start: int, stop: int) -> Array:
    """Return what the codes of some rows stand for."""
    found = matrix.read_codes(start, stop)
    codes = found.codes.reshape(*found.scales.shape, -1)
    values: Array = (codes * found.scales[..., None] + found.lows[..., None]).reshape(len(codes), -1)
    return values


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"quant_method": "awq", "version": "gemv"}, Unsupported),
        ({"quant_method": "awq", "bits": 3}, Unsupported),
        ({"quant_method": "gptq", "bits": 5}, Unsupported),
        ({"quant_method": "gptq", "bits": 3}, ParallaxError),
    ],
)
def test_settings_that_are_not_read_are_refused(settings: dict[str, Any], error: type[ParallaxError]) -> None:
    parts = {"a.qweight": draw(9, 5, 8).astype(np.int32), "a.qzeros": draw(9, 1, 8).astype(np.int32)}
    parts["a.scales"] = np.ones((1, 8), np.float16)
    with pytest.raises(error):
        group_tensors({"quantization_config": settings}, {name: store(part) for name, part in parts.items()})


def test_group_out_of_range_is_refused() -> None:
    parts: dict[str, Array] = {"a.qweight": np.zeros((4, 8), np.int32), "a.qzeros": np.zeros((1, 1), np.int32)}
    parts |= {"a.scales": np.ones((1, 8), np.float16), "a.g_idx": np.full(32, 7, np.int32)}
    with pytest.raises(ParallaxError, match="a is not 4 bits of GPTQ by their groups"):
        group_tensors(
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            {name: store(part) for name, part in parts.items()},
        )
