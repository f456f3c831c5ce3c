"""Weights of compressed-tensors and in 8 bits against that library and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import (
    IntQuantizationCompressor,
    MXFP4PackedCompressor,
    MXFP8QuantizationCompressor,
    NaiveQuantizationCompressor,
    NVFP4PackedCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from parallax_core.api import ParallaxError, Tensor
from parallax_formats import group_tensors

ROWS, INPUTS = 40, 192


def store(found: torch.Tensor) -> Tensor:
    whole = found.detach().contiguous()
    data = bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""
    return Tensor(str(whole.dtype).rpartition(".")[2], tuple(whole.shape), data)


def make_weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def read_all(config: dict[str, Any], parts: dict[str, torch.Tensor]) -> torch.Tensor:
    matrix = group_tensors(config, {f"a.{word}": store(part) for word, part in parts.items()})["a.weight"]
    whole = matrix.read(0, matrix.num_rows)
    np.testing.assert_array_equal(matrix.read(3, 21), whole[3:21])
    assert matrix.shape == (ROWS, INPUTS)
    if matrix.grid is not None:
        found, groups = matrix.read_codes(3, 21), INPUTS // matrix.grid.group
        numbers = found.codes.reshape(18, groups, -1) * found.scales[..., None] + found.lows[..., None]
        np.testing.assert_allclose(numbers.reshape(18, -1), whole[3:21], rtol=1e-4, atol=1e-5 * np.abs(whole).max())
        middle = -(2 ** (matrix.grid.bits - 1)) * found.scales
        assert matrix.grid.has_low or np.array_equal(found.lows, middle)
    return torch.from_numpy(whole)


def describe(weights: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}}


def compress(kind: Any, weights: dict[str, Any], **parts: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors that the library writes for a weight, and the weight that it reads from them."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    written = kind.compress({"weight": make_weight(ROWS, INPUTS), **parts}, scheme)
    return written, kind.decompress(dict(written), scheme)["weight"].float()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_integers(bits: int, symmetric: bool) -> None:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 64, "symmetric": symmetric}
    high = 2 ** (bits - 1)
    zeros = torch.randint(-high, high, (ROWS, 3), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    parts = {"weight_scale": make_weight(ROWS, 3).abs() / high}
    written, wanted = compress(
        PackedQuantizationCompressor, weights, **parts, **({} if symmetric else {"weight_zero_point": zeros})
    )
    assert torch.equal(read_all(describe(weights), written), wanted)


def test_packed_integers_of_unordered_groups() -> None:
    weights = {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": 64,
        "symmetric": True,
        "actorder": "group",
    }
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(2)) // 64
    codes = torch.randint(-8, 8, (ROWS, INPUTS), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    scale = make_weight(ROWS, 3).abs()
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**{**weights, "strategy": "channel", "group_size": None, "actorder": None}),
    )
    written = PackedQuantizationCompressor.compress(
        {"weight": codes.float(), "weight_scale": torch.ones(ROWS, 1)}, scheme
    )
    parts = {**written, "weight_scale": scale, "weight_g_idx": order.int()}
    assert torch.equal(read_all(describe(weights), parts), codes.float() * scale[:, order])


@pytest.mark.parametrize("scale", [(1,), (ROWS, 1), (ROWS, 3)])
def test_integers_of_8_bits(scale: tuple[int, ...]) -> None:
    weights = {"num_bits": 8, "type": "int", "symmetric": True}
    weights |= {(1,): {"strategy": "tensor"}, (ROWS, 1): {"strategy": "channel"}}.get(
        scale, {"strategy": "group", "group_size": 64}
    )
    written, wanted = compress(IntQuantizationCompressor, weights, weight_scale=make_weight(*scale).abs() / 64)
    assert torch.equal(read_all(describe(weights), written), wanted)


def test_blocks_that_do_not_divide_the_weight() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 128], "symmetric": True}
    written, wanted = compress(NaiveQuantizationCompressor, weights, weight_scale=make_weight(2, 2).abs() / 64)
    assert torch.equal(read_all(describe(weights), written), wanted)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("word", "scale"), [("weight_scale_inv", (2, 2)), ("weight_scale", ()), ("weight_scale", (ROWS,))]
)
def test_floats_of_8_bits(dtype: torch.dtype, word: str, scale: tuple[int, ...]) -> None:
    codes, scales = make_weight(ROWS, INPUTS).to(dtype), make_weight(*scale).abs() + 0.1
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 128]}}
    spread = (
        scales[torch.arange(ROWS) // 32][:, torch.arange(INPUTS) // 128] if scale == (2, 2) else scales.reshape(-1, 1)
    )
    found = read_all(config, {"weight": codes, word: scales, "input_scale": torch.ones(1)})
    assert torch.equal(found, codes.float() * spread)


def test_exponents_may_be_scales() -> None:
    codes, scales = make_weight(ROWS, INPUTS).to(torch.float8_e4m3fn), torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 128]}}
    found = read_all(config, {"weight": codes, "weight_scale_inv": scales.to(torch.float8_e8m0fnu)})
    assert torch.equal(found, read_all(config, {"weight": codes, "weight_scale_inv": scales}))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_weights_of_deepseek_v4_are_those_of_transformers(kind: torch.dtype) -> None:
    source = torch.Generator().manual_seed(5)
    columns, blocks = (INPUTS, (2, 3)) if kind.is_floating_point else (INPUTS // 2, (ROWS, INPUTS // 32))
    codes = torch.randint(0, 127, (ROWS, columns), generator=source, dtype=torch.uint8)
    codes |= torch.randint(0, 2, codes.shape, generator=source, dtype=torch.uint8) << 7
    scales = torch.randint(118, 128, blocks, generator=source, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    codes[codes & 127 == 127] = 0  # not a number
    settings = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [20, 64]}
    found = read_all({"quantization_config": settings}, {"weight": codes.view(kind), "scale": scales})
    assert torch.equal(found, Fp8Dequantize(None)._dequantize_one(codes.view(kind), scales, torch.float32))


def test_nvfp4() -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    scale = make_weight(ROWS, INPUTS // 16).abs() * 100 + 1
    written, wanted = compress(
        NVFP4PackedCompressor, weights, weight_scale=scale, weight_global_scale=torch.tensor([321.0])
    )
    found = read_all(describe(weights), written)
    assert torch.equal(found.bfloat16().float(), wanted), "the library rounds to bfloat16"
    modelopt = {
        "weight": written["weight_packed"],
        "weight_scale": written["weight_scale"],
        "weight_scale_2": torch.tensor(1 / 321.0),
    }
    other = read_all({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, modelopt)
    torch.testing.assert_close(other, found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_microscaled(bits: int) -> None:
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    scale = torch.exp2(torch.randint(-6, 3, (ROWS, INPUTS // 32), generator=torch.Generator().manual_seed(4)).float())
    written, wanted = compress(
        MXFP4PackedCompressor if bits == 4 else MXFP8QuantizationCompressor, weights, weight_scale=scale
    )
    assert torch.equal(read_all(describe(weights), written), wanted)


@pytest.mark.parametrize(
    "parts",
    [
        {"weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn)},
        {"weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn), "weight_scale": torch.ones(3)},
        {"weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn), "weight_scale": torch.ones(4, 3)},
        {"weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn), "weight_scale": torch.ones(0)},
        {"weight": torch.zeros(8, dtype=torch.int8), "weight_scale": torch.ones(1)},
        {"weight_packed": torch.zeros(4, 2, dtype=torch.uint8), "weight_scale": torch.ones(4, 3)},
        {
            "weight_packed": torch.zeros(4, 2, dtype=torch.int32),
            "weight_scale": torch.ones(4, 1),
            "weight_shape": torch.tensor([4, 10**9]),
        },
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(parts: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ParallaxError, match=r"\ba\b"):
        read_all(describe({"num_bits": 4}), parts)
