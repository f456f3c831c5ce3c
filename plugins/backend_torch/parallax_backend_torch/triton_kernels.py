"""Kernels for CUDA devices in Triton, which PyTorch for CUDA brings: norms, rope, gates, and attention over pages.

PyTorch takes several kernels for each of the first three, and reads every number as often. For attention, it copies
the keys and values of all rows, padded to the longest; here they are read where they lie, as FlashAttention does
(arXiv 2205.14135). If there are few queries, the keys are split, and the results of the parts are combined by their
sums: FlashDecoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

LEAST_CAPABILITY = (8, 0)
"""The oldest devices that multiply bfloat16 in Triton."""
WIDEST = 256
"""The widest head."""
LEAST_SIZE = 16
"""The least of each dimension of a product in Triton."""
PROGRAMS = 512
"""About how many programs fill a device: some for each multiprocessor of the largest."""
MOST_SPLITS = 32
LOG2_E = 1.4426950408889634
"""Scores times this are exponents of two, which are faster."""
MOST_WIDE_LINES = 32
"""The most lines at a time in float32, which fills more registers."""
LANES = 1024
"""The numbers that a program gates."""
LONG_ROW = 2048
"""The numbers of a row from which more threads work on it."""
GATES = {"silu": 0, "gelu_tanh": 1}


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of the work of a program of `attend_pages`."""

    lines: int
    """The queries of all heads that share keys, at a time."""
    keys: int
    """The keys at a time."""
    num_stages: int
    """How many blocks of keys are on their way from memory."""
    num_warps: int

    def count_bytes(self, width: int, size: int) -> int:
        """Return the shared memory that a program takes, for heads of ``width`` numbers of ``size`` bytes."""
        return (self.lines + 2 * self.num_stages * self.keys) * width * size


PROMPTS = (Tile(128, 64, 3, 8), Tile(64, 64, 2, 4), Tile(64, 32, 2, 4), Tile(32, 32, 2, 4), Tile(16, 16, 1, 4))
"""The tiles of tables with many tokens per row, by their need of shared memory."""
DECODES = (Tile(16, 64, 3, 4), Tile(16, 64, 2, 4), Tile(16, 32, 2, 4), Tile(16, 16, 1, 4))


@cache
def choose_tile(device: int, lines: int, width: int, size: int) -> Tile:
    """Return the largest tile that a device has memory for.

    Args:
        device: the number of the device.
        lines: the queries of all heads that share keys.
        width: the width of a head, a power of two.
        size: the bytes of a number.
    """
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin * 3 // 4
    tiles = DECODES if lines <= LEAST_SIZE else PROMPTS
    most = MOST_WIDE_LINES if size > torch.bfloat16.itemsize else max(each.lines for each in tiles)
    fitting = [each for each in tiles if each.lines <= most and each.count_bytes(width, size) <= room]
    return fitting[0] if fitting else tiles[-1]


def count_splits(programs: int, room: int, tile: Tile) -> int:
    """Return how many parts the keys of a row are read in, for a number of programs and of keys that a row may have."""
    most: int = triton.cdiv(room, 2 * tile.keys)
    return max(1, min(MOST_SPLITS, most, PROGRAMS // programs))


def try_kernels(device: torch.device) -> None:
    """Run the norm and the attention once, on a few numbers.

    Raises:
        Exception: of Triton, if they cannot be compiled or do not run on the device.
    """
    x = torch.ones(1, 1, 1, LEAST_SIZE, dtype=torch.bfloat16, device=device)
    pool, zeros = torch.ones(LEAST_SIZE, 1, LEAST_SIZE, dtype=torch.bfloat16, device=device), x.new_zeros(1).long()
    normalize_rms(x, torch.ones(LEAST_SIZE, device=device), 0.0, 0.0)
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


def attend_pages(
    query: torch.Tensor,
    pool: tuple[torch.Tensor, torch.Tensor],
    table: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    page_size: int,
    limits: tuple[float, int],
) -> torch.Tensor:
    """Return the attention of the queries of rows with the same number of tokens.

    Args:
        query: [rows, tokens, heads, width], contiguous in its last two dimensions.
        pool: keys and values, [slots, kv_heads, width] each, contiguous and of the query's dtype.
        table: the position of each row's first query, the position of the first slot of its first page, both int64 of
            shape [rows], and its pages, int64 of shape [rows, pages].
        page_size: slots of a page.
        limits: the factor of the scores, and the number of positions that a query sees; 0: all up to its own.

    Returns:
        [rows, tokens, heads, width], of the query's dtype.
    """
    (keys, values), (starts, bases, pages), (scale, window) = pool, table, limits
    (rows, tokens, heads, width), kv_heads = query.shape, keys.shape[1]
    group, padded_width = heads // kv_heads, max(LEAST_SIZE, triton.next_power_of_2(width))
    tile = choose_tile(query.device.index, tokens * group, padded_width, query.element_size())
    blocks = triton.cdiv(tokens * group, tile.lines)
    splits = count_splits(rows * kv_heads * blocks, pages.shape[1] * page_size, tile)
    found = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    parts, sums = found, found
    if splits > 1:
        parts = torch.empty((rows * tokens * heads, splits, width), dtype=torch.float32, device=query.device)
        sums = torch.empty(parts.shape[:2], dtype=torch.float32, device=query.device)
    tensors = query, keys, values, parts, sums, starts, bases, pages
    numbers = scale * LOG2_E, tokens, blocks, pages.stride(0), splits, query.stride(0), query.stride(1)
    sizes: tuple[Any, ...] = (
        kv_heads,
        group,
        width,
        page_size,
        window,
        tile.lines,
        padded_width,
        tile.keys,
        splits > 1,
    )
    with torch.cuda.device_of(query):
        _attend[(rows * kv_heads * blocks, splits)](
            *tensors, *numbers, *sizes, num_warps=tile.num_warps, num_stages=tile.num_stages
        )
        if splits > 1:
            _combine[(len(parts),)](parts, sums, found, splits, MOST_SPLITS, width, padded_width)
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


@triton.jit(do_not_specialize=["tokens", "blocks", "table_stride", "splits"])
def _attend(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    starts: tl.tensor,
    bases: tl.tensor,
    pages: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    blocks: tl.tensor,
    table_stride: tl.tensor,
    splits: tl.tensor,
    row_stride: tl.tensor,
    token_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    LINES: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_SPLIT: tl.constexpr,
) -> None:
    number, part = tl.program_id(0) // blocks, tl.program_id(1)
    row, kv_head = (number // KV_HEADS).to(tl.int64), number % KV_HEADS
    # A line is one head of one token; the last tokens, which see most, come first.
    first_line = (blocks - 1 - tl.program_id(0) % blocks) * LINES
    line = first_line + tl.arange(0, LINES)
    token, head, is_line = line // GROUP, kv_head * GROUP + line % GROUP, line < tokens * GROUP
    start, base = tl.load(starts + row), tl.load(bases + row)
    position = start + token
    stop = start + tl.minimum((first_line + LINES - 1) // GROUP + 1, tokens)
    first = base
    if WINDOW:
        first = tl.maximum(base, start + first_line // GROUP - WINDOW + 1)
    size = tl.cdiv(tl.cdiv(stop - first, splits), BLOCK) * BLOCK
    begin = first + part * size
    end = tl.minimum(begin + size, stop)
    lane = tl.arange(0, PADDED_WIDTH)
    is_lane = lane < WIDTH
    is_query = is_line[:, None] & is_lane[None, :]
    query_places = query + row * row_stride + token[:, None] * token_stride + head[:, None] * WIDTH + lane[None, :]
    queries = tl.load(query_places, mask=is_query, other=0.0)
    line_max = tl.full([LINES], float("-inf"), tl.float32)
    line_sum = tl.zeros([LINES], tl.float32)
    accumulator = tl.zeros([LINES, PADDED_WIDTH], tl.float32)
    for block in range(begin, end, BLOCK):
        place = block + tl.arange(0, BLOCK)
        within = place < end
        at = place - base
        slot = tl.load(pages + row * table_stride + at // PAGE, mask=within, other=0) * PAGE + at % PAGE
        offset = (slot[:, None] * KV_HEADS + kv_head) * WIDTH + lane[None, :]
        is_key = within[:, None] & is_lane[None, :]
        key = tl.load(keys + offset, mask=is_key, other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        seen = within[None, :] & (place[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (place[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(line_max, tl.max(scores, 1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # of lines that see nothing yet
        weights, rescale = tl.exp2(scores - shift[:, None]), tl.exp2(line_max - shift)
        value = tl.load(values + offset, mask=is_key, other=0.0)
        line_sum = line_sum * rescale + tl.sum(weights, 1)
        accumulator = accumulator * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        line_max = new_max
    mean = accumulator / tl.where(line_sum == 0, 1.0, line_sum)[:, None]
    target = ((row * tokens + token) * KV_HEADS * GROUP + head) * splits + part
    tl.store(parts + target[:, None] * WIDTH + lane[None, :], mean, mask=is_query)
    if IS_SPLIT:
        tl.store(sums + target, tl.where(line_sum == 0, float("-inf"), line_max + tl.log2(line_sum)), mask=is_line)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    parts: tl.tensor,
    sums: tl.tensor,
    found: tl.tensor,
    splits: tl.tensor,
    MOST: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    part, lane = tl.arange(0, MOST), tl.arange(0, PADDED_WIDTH)
    logs = tl.load(sums + line * splits + part, mask=part < splits, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, 0))
    places = parts + (line * splits + part[:, None]) * WIDTH + lane[None, :]
    means = tl.load(places, mask=(part < splits)[:, None] & (lane < WIDTH)[None, :], other=0.0)
    combined = tl.sum(weights[:, None] * means, 0) / tl.sum(weights, 0)
    tl.store(found + line * WIDTH + lane, combined, mask=lane < WIDTH)
