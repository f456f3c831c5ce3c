"""Weights of mlx-lm against MLX itself."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from parallax_core.api import Tensor
from parallax_formats import group_tensors

ROWS, INPUTS = 24, 192


def store(array: mx.array) -> Tensor:
    dtype = str(array.dtype).rpartition(".")[2]
    return Tensor(dtype, tuple(array.shape), np.array(array).tobytes())


def make_weight(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(3))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_affine_weights_are_those_of_mlx(bits: int, group: int, dtype: mx.Dtype) -> None:
    words, scales, biases = mx.quantize(make_weight(ROWS, INPUTS).astype(dtype), group, bits)
    config: dict[str, Any] = {"quantization": {"group_size": group, "bits": bits}}
    tensors = {"a.weight": store(words), "a.scales": store(scales), "a.biases": store(biases)}
    matrix = group_tensors(config, tensors)["a.weight"]
    wanted = mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)
    assert matrix.shape == (ROWS, INPUTS)
    np.testing.assert_allclose(matrix.read(0, ROWS), np.array(wanted), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(matrix.read(5, 9), matrix.read(0, ROWS)[5:9])


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_small_floats_are_those_of_mlx(mode: str) -> None:
    words, scales = mx.quantize(make_weight(ROWS, INPUTS), mode=mode)[:2]
    config = {"quantization": {"group_size": 16 if mode == "nvfp4" else 32, "bits": 4, "mode": mode}}
    matrix = group_tensors(config, {"a.weight": store(words), "a.scales": store(scales)})["a.weight"]
    wanted = mx.dequantize(words, scales, mode=mode, dtype=mx.float32)
    np.testing.assert_array_equal(matrix.read(0, ROWS), np.array(wanted))
    assert (matrix.grid is None) == (mode == "mxfp8")
    if matrix.grid is not None:
        found, groups = matrix.read_codes(5, 9), INPUTS // matrix.grid.group
        numbers = found.codes.reshape(4, groups, -1) * found.scales[..., None] + found.lows[..., None]
        np.testing.assert_array_equal(numbers.reshape(4, -1), matrix.read(5, 9))


def test_layers_may_have_bits_and_groups_of_their_own() -> None:
    words, scales, biases = mx.quantize(make_weight(ROWS, INPUTS), 32, 6)
    config = {"quantization": {"group_size": 64, "bits": 4, "a.b": {"group_size": 32, "bits": 6}}}
    tensors = {"a.b.weight": store(words), "a.b.scales": store(scales), "a.b.biases": store(biases)}
    wanted = mx.dequantize(words, scales, biases, 32, 6)
    np.testing.assert_allclose(group_tensors(config, tensors)["a.b.weight"].read(0, ROWS), np.array(wanted), rtol=1e-6)


def test_stack_of_experts_is_read_through() -> None:
    words, scales, biases = mx.quantize(make_weight(3, ROWS, INPUTS), 64, 4)
    tensors = {"a.weight": store(words), "a.scales": store(scales), "a.biases": store(biases)}
    matrix = group_tensors({"quantization": {"group_size": 64, "bits": 4}}, tensors)["a.weight"]
    wanted = np.array(mx.dequantize(words, scales, biases, 64, 4)).reshape(-1, INPUTS)
    assert (matrix.shape, matrix.num_rows) == ((3, ROWS, INPUTS), 3 * ROWS)
    np.testing.assert_allclose(matrix.read(20, 50), wanted[20:50], rtol=1e-6, atol=1e-6)
