"""Attention over pages on CUDA devices, in Triton.

PyTorch copies the keys and values of all rows, padded to the longest; here they are read where they lie, as
FlashAttention does (arXiv 2205.14135). If there are few queries, the keys are split, and the results of the parts are
combined by their sums: FlashDecoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as device

from parallax_backend_torch.product_tiles import find_processors
from parallax_backend_torch.triton_products import overlaps

WIDEST = 256
"""The widest head."""
LEAST_SIZE = 16
"""The least of each dimension of a product in Triton."""
AT_ONCE = 3
"""The programs that a multiprocessor runs at once."""
MOST_ROUNDS = 2
"""How often a split has each multiprocessor run that many programs, at most."""
EVEN = 0.9
"""The share of a device that is enough to fill."""
MOST_SPLITS = 32
LOG2_E = 1.4426950408889634
"""Scores times this are exponents of two, which are faster."""
MOST_WIDE_LINES = 32
"""The most lines at a time in float32, which fills more registers."""


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
        """Return the shared memory that a program takes, for heads of ``width`` numbers of ``size`` bytes.

        The numbers of the pages are read a stage before the keys, so about half of the stages hold keys and values.
        """
        blocks = 1 + triton.cdiv(self.num_stages - 1, 2)
        return int((self.lines + 2 * blocks * self.keys) * width * size)


PROMPTS = (
    Tile(128, 64, 5, 8),
    Tile(128, 64, 3, 8),
    Tile(64, 64, 2, 4),
    Tile(64, 32, 2, 4),
    Tile(32, 32, 2, 4),
    Tile(16, 16, 1, 4),
)
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


@lru_cache(maxsize=1024)
def count_splits(programs: int, room: int, tile: Tile, processors: int) -> int:
    """Return how many parts the keys of a row are read in, so that programs fill a device evenly.

    Args:
        programs: the number of programs if keys are not split.
        room: the keys that a row may have.
        tile: the work of a program.
        processors: the multiprocessors of the device.
    """
    at_once, best, most = AT_ONCE * processors, 1, 0.0
    for splits in range(1, min(MOST_SPLITS, triton.cdiv(room, 2 * tile.keys)) + 1):
        rounds = triton.cdiv(programs * splits, at_once)
        share = programs * splits / (rounds * at_once)
        if splits > 1 and rounds > MOST_ROUNDS:
            break
        if share > most:
            best, most = splits, share
        if share >= EVEN:
            break
    return best


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
    processors = find_processors(query.device).count
    splits = count_splits(rows * kv_heads * blocks, pages.shape[1] * page_size, tile, processors)
    found = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    parts, sums = found, found
    if splits > 1:
        parts = torch.empty((rows * tokens * heads, splits, width), dtype=torch.float32, device=query.device)
        sums = torch.empty(parts.shape[:2], dtype=torch.float32, device=query.device)
    numbers = scale * LOG2_E, tokens, blocks, pages.stride(0), splits, query.stride(0), query.stride(1)
    heads_and_pages = kv_heads, group, width, page_size, window
    is_new = overlaps(query.device)
    sizes = tile.lines, padded_width, tile.keys, splits > 1, is_new
    with torch.cuda.device_of(query):
        _attend[(rows * kv_heads * blocks, splits)](
            *(query, keys, values, parts, sums, starts, bases, pages),
            *numbers,
            *heads_and_pages,
            *sizes,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            launch_pdl=is_new,
        )
        if splits > 1:
            joined = MOST_SPLITS, width, padded_width, is_new
            _combine[(len(parts),)](parts, sums, found, splits, *joined, launch_pdl=is_new)
    return found


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
    IS_NEW: tl.constexpr,
) -> None:
    if IS_NEW:
        device.gdc_launch_dependents()
        device.gdc_wait()
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
    IS_NEW: tl.constexpr,
) -> None:
    if IS_NEW:
        device.gdc_launch_dependents()
        device.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    part, lane = tl.arange(0, MOST), tl.arange(0, PADDED_WIDTH)
    logs = tl.load(sums + line * splits + part, mask=part < splits, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, 0))
    places = parts + (line * splits + part[:, None]) * WIDTH + lane[None, :]
    means = tl.load(places, mask=(part < splits)[:, None] & (lane < WIDTH)[None, :], other=0.0)
    combined = tl.sum(weights[:, None] * means, 0) / tl.sum(weights, 0)
    tl.store(found + line * WIDTH + lane, combined, mask=lane < WIDTH)
