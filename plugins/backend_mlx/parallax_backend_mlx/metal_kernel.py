"""Attention of one query per row over paged keys and values, as a Metal kernel without gathers.

A threadgroup computes one head of one row. Each of its simdgroups takes every `PARTS`-th key, with an online softmax
(arXiv 1805.02867; pages: vLLM, SOSP 2023), and their results are joined at the end.

The kernel was not run on Metal when it was written. Its arithmetic is tested on Linux, where the same text is compiled
as C++, and on a Mac `check_kernel` compares it with the gathered computation before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from parallax_backend_mlx.runtime import mx

LANES = 32
"""Threads of a simdgroup."""
PARTS = 8
"""Simdgroups of a threadgroup."""
MAX_WIDTH = 512
"""The widest head that fits the memory of a threadgroup, 32 KiB."""

TOLERANCE = {mx.float32: 1e-4, mx.float16: 5e-3, mx.bfloat16: 4e-2}
"""The largest difference allowed between the kernel and the gathered computation, by dtype."""

SOURCE = """
    uint lane = thread_index_in_simdgroup;
    uint part = simdgroup_index_in_threadgroup;
    uint unit = threadgroup_position_in_grid.x;
    uint row = unit / (KV_HEADS * GROUP);
    uint kv_head = unit % (KV_HEADS * GROUP) / GROUP;
    int begin = bounds[2 * row];
    int end = bounds[2 * row + 1];

    float query[WIDTH / 32];
    float sum[VALUE_WIDTH / 32];
    for (uint i = 0; i < WIDTH / 32; i++) {
        query[i] = float(queries[unit * WIDTH + 32 * i + lane]) * scale[0];
    }
    for (uint i = 0; i < VALUE_WIDTH / 32; i++) {
        sum[i] = 0;
    }

    float top = -1e30f;
    float total = 0;
    for (int at = begin + int(part); at < end; at += PARTS) {
        uint page = table[row * num_pages[0] + at / PAGE_SIZE];
        size_t slot = (size_t(page) * KV_HEADS + kv_head) * PAGE_SIZE + at % PAGE_SIZE;
        float score = 0;
        for (uint i = 0; i < WIDTH / 32; i++) {
            score += query[i] * float(keys[slot * WIDTH + 32 * i + lane]);
        }
        score = simd_sum(score);
        float next = max(top, score);
        float fade = exp(top - next);
        float weight = exp(score - next);
        total = total * fade + weight;
        for (uint i = 0; i < VALUE_WIDTH / 32; i++) {
            sum[i] = sum[i] * fade + weight * float(values[slot * VALUE_WIDTH + 32 * i + lane]);
        }
        top = next;
    }

    threadgroup float tops[PARTS];
    threadgroup float totals[PARTS];
    threadgroup float sums[PARTS * VALUE_WIDTH];
    if (lane == 0) {
        tops[part] = top;
        totals[part] = total;
    }
    for (uint i = 0; i < VALUE_WIDTH / 32; i++) {
        sums[part * VALUE_WIDTH + 32 * i + lane] = sum[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part == 0) {
        for (uint other = 0; other < PARTS; other++) {
            top = max(top, tops[other]);
        }
        total = 0;
        for (uint other = 0; other < PARTS; other++) {
            total += totals[other] * exp(tops[other] - top);
        }
        for (uint i = 0; i < VALUE_WIDTH / 32; i++) {
            float joined = 0;
            for (uint other = 0; other < PARTS; other++) {
                joined += sums[other * VALUE_WIDTH + 32 * i + lane] * exp(tops[other] - top);
            }
            out[unit * VALUE_WIDTH + 32 * i + lane] = T(joined / total);
        }
    }
"""
INPUTS = ("queries", "keys", "values", "table", "bounds", "num_pages", "scale")


@dataclass(frozen=True, slots=True)
class Pages:
    """Keys and values in pages, and the pages of some rows."""

    keys: mx.array
    """Shape [pages * heads * page_size, width]; row ``(page * heads + head) * page_size + slot`` is one key."""
    values: mx.array
    """The values, in the same layout; their width may differ."""
    table: mx.array
    """The pages of each row in order, uint32 of shape [rows, pages]."""
    bounds: mx.array
    """The first key that each row sees and the one after the last, as slots of its pages, int32 of shape [rows, 2]."""
    heads: int
    page_size: int


class DecodeKernel:
    """The kernel, for all shapes; compiled on the first call. Needs Metal."""

    @cached_property
    def _kernel(self) -> Any:  # noqa: ANN401  # MLX gives it no type
        return mx.fast.metal_kernel(
            name="parallax_paged_decode", input_names=list(INPUTS), output_names=["out"], source=SOURCE
        )

    def run(self, queries: mx.array, pages: Pages, scale: float) -> mx.array:
        """Return the attention of one query per row, not evaluated yet.

        Args:
            queries: shape [rows, query heads, 1, width].
            pages: the keys and values.
            scale: the factor of the scores.

        Returns:
            Shape [rows, query heads, 1, value width], of the dtype of ``queries``.
        """
        rows, query_heads, _, width = queries.shape
        value_width = pages.values.shape[-1]
        template = [
            ("T", queries.dtype),
            ("KV_HEADS", pages.heads),
            ("GROUP", query_heads // pages.heads),
            ("WIDTH", width),
            ("VALUE_WIDTH", value_width),
            ("PAGE_SIZE", pages.page_size),
            ("PARTS", PARTS),
        ]
        [out] = self._kernel(
            inputs=[
                queries,
                pages.keys,
                pages.values,
                pages.table,
                pages.bounds,
                mx.array([pages.table.shape[1]], dtype=mx.uint32),
                mx.array([scale], dtype=mx.float32),
            ],
            template=template,
            grid=(rows * query_heads * LANES * PARTS, 1, 1),
            threadgroup=(LANES * PARTS, 1, 1),
            output_shapes=[(rows, query_heads, 1, value_width)],
            output_dtypes=[queries.dtype],
        )
        result: mx.array = out
        return result


def fits(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether the kernel can run on arrays of these shapes, all [rows, heads, tokens, width]."""
    is_even = queries.shape[1] % keys.shape[1] == 0 and keys.shape[1] == values.shape[1]
    widths = keys.shape[3], values.shape[3]
    return queries.shape[2] == 1 and is_even and all(width % LANES == 0 and width <= MAX_WIDTH for width in widths)


def check_kernel(kernel: DecodeKernel, dtype: mx.Dtype) -> str:
    """Compare the kernel with the gathered computation on random pages; return the error, if any."""
    key = mx.random.key(0)
    queries = mx.random.normal((3, 4, 1, 64), key=key).astype(dtype)
    keys, values = (mx.random.normal((9 * 2 * 4, 64), key=each).astype(dtype) for each in mx.random.split(key))
    table = mx.array([[3, 1, 7], [8, 2, 0], [5, 0, 0]], dtype=mx.uint32)
    bounds = mx.array([[0, 11], [2, 5], [0, 1]], dtype=mx.int32)
    pages = Pages(keys, values, table, bounds, heads=2, page_size=4)
    try:
        found = kernel.run(queries, pages, 0.125)
        error = float(mx.max(mx.abs(found - attend_plainly(queries, pages, 0.125))).item())  # type: ignore[arg-type]
    except Exception as failure:  # noqa: BLE001  # any error of Metal's compiler
        return f"{type(failure).__name__}: {failure}"
    return "" if error <= TOLERANCE[dtype] else f"it is off by {error:.2g}"


def attend_plainly(queries: mx.array, pages: Pages, scale: float) -> mx.array:
    """Return the expected result of `DecodeKernel.run`, by gathering the pages."""
    keys, values = (_gather(array, pages) for array in (pages.keys, pages.values))
    places = mx.arange(pages.table.shape[1] * pages.page_size)
    seen = (places >= pages.bounds[:, :1]) & (places < pages.bounds[:, 1:])
    found: mx.array = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=seen[:, None, None])
    return found


def _gather(array: mx.array, pages: Pages) -> mx.array:
    """Return keys or values as [rows, heads, tokens, width]."""
    width = array.shape[-1]
    found = array.reshape(-1, pages.heads, pages.page_size, width)[pages.table]
    return found.transpose(0, 2, 1, 3, 4).reshape(pages.table.shape[0], pages.heads, -1, width)
