"""The kernels for CUDA devices in Triton, which PyTorch for CUDA brings.

PyTorch takes several kernels for a norm, for rope and for a gate, and reads every number as often.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from parallax_backend_torch.product_tiles import BLOCK
from parallax_backend_torch.triton_attention import LEAST_SIZE, WIDEST, attend_pages
from parallax_backend_torch.triton_heads import place_heads
from parallax_backend_torch.triton_products import MOST_ROWS, Product, Stream, begin_stream

__all__ = [
    "LEAST_CAPABILITY",
    "MOST_ROWS",
    "WIDEST",
    "Product",
    "Stream",
    "apply_gate",
    "attend_pages",
    "begin_stream",
    "normalize_rms",
    "place_heads",
    "rotate_halves",
    "try_kernels",
]

LEAST_CAPABILITY = (8, 0)
"""The oldest devices that multiply bfloat16 in Triton."""
LANES = 1024
"""The numbers that a program gates."""
LONG_ROW = 2048
"""The numbers of a row from which more threads work on it."""
GATES = {"silu": 0, "gelu_tanh": 1}


def try_kernels(device: torch.device) -> None:
    """Run the norm, a product and the attention once, on a few numbers.

    Raises:
        Exception: of Triton, if they cannot be compiled or do not run on the device.
    """
    x = torch.ones(1, 1, 1, LEAST_SIZE, dtype=torch.bfloat16, device=device)
    pool, zeros = torch.ones(LEAST_SIZE, 1, LEAST_SIZE, dtype=torch.bfloat16, device=device), x.new_zeros(1).long()
    normalize_rms(x, torch.ones(LEAST_SIZE, device=device), 0.0, 0.0)
    Product(x.new_ones(BLOCK, BLOCK), None).apply(x.new_ones(1, BLOCK))
    attend_pages(x, (pool, pool), (zeros, zeros, zeros[None]), LEAST_SIZE, (1.0, 0)).sum().item()


def normalize_rms(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """Return the root mean square normalisation over the last dimension; see `arithmetic.Norm`.

    Args:
        x: [..., width], of any float dtype.
        weight: float32 of shape [width].
        eps: added to the mean square.
        offset: added to the weight.
    """
    flat = x.reshape(-1, x.shape[-1])
    found = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
    rows, width = flat.shape
    padded_width = triton.next_power_of_2(width)
    numbers = flat.stride(0), eps, offset, width, padded_width
    if rows:
        with torch.cuda.device_of(x):
            _normalize[(rows,)](flat, weight, found, *numbers, num_warps=8 if padded_width >= LONG_ROW else 4)
    return found.view(x.shape)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate heads in place.

    Args:
        x: [tokens, heads, width], contiguous in its last dimension.
        cos: the cosines of the angles of each token, float32 of shape [tokens, half], contiguous.
        sin: the sines.
    """
    tokens, heads, _ = x.shape
    half = cos.shape[1]
    heads_at_once = min(triton.next_power_of_2(heads), 16)
    if tokens:
        with torch.cuda.device_of(x):
            _rotate[(tokens, triton.cdiv(heads, heads_at_once))](
                x, cos, sin, x.stride(0), x.stride(1), heads, half, heads_at_once, triton.next_power_of_2(half)
            )


def apply_gate(x: torch.Tensor, gate: str) -> torch.Tensor:
    """Return the second half of each row times the gate of the first half.

    Args:
        x: [rows, 2 * width], contiguous.
        gate: ``silu`` or ``gelu_tanh``.

    Returns:
        [rows, width].
    """
    rows, width = x.shape[0], x.shape[1] // 2
    found = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if rows:
        with torch.cuda.device_of(x):
            _gate[(rows, triton.cdiv(width, LANES))](x, found, width, GATES[gate], LANES)
    return found


@triton.jit
def _normalize(
    x: tl.tensor,
    weight: tl.tensor,
    found: tl.tensor,
    stride: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    width: tl.tensor,
    PADDED_WIDTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PADDED_WIDTH)
    inside = lane < width
    numbers = tl.load(x + row * stride + lane, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / width + eps)
    factors = tl.load(weight + lane, mask=inside, other=0.0) + offset
    tl.store(found + row * width + lane, numbers * scale * factors, mask=inside)


@triton.jit
def _rotate(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    heads: tl.tensor,
    half: tl.tensor,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lane = tl.arange(0, HALF)
    inside = (head < heads)[:, None] & (lane < half)[None, :]
    place = x + token * token_stride + head[:, None] * head_stride + lane[None, :]
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    cosines = tl.load(cos + token * half + lane, mask=lane < half, other=0.0)[None, :]
    sines = tl.load(sin + token * half + lane, mask=lane < half, other=0.0)[None, :]
    tl.store(place, first * cosines - second * sines, mask=inside)
    tl.store(place + half, second * cosines + first * sines, mask=inside)


@triton.jit
def _gate(x: tl.tensor, found: tl.tensor, width: tl.tensor, GATE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    row, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < width
    gate = tl.load(x + row * 2 * width + lane, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * width + width + lane, mask=inside, other=0.0).to(tl.float32)
    exponent = gate
    if GATE == 1:  # gelu_tanh: (1 + tanh(z)) / 2 is the sigmoid of 2 z
        exponent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    tl.store(found + row * width + lane, gate * tl.sigmoid(exponent) * value, mask=inside)
