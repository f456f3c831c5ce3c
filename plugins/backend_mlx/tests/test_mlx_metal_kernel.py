"""The Metal kernel's text, compiled as C++, computes what attention over gathered pages does.

This checks its indexing, grouping of heads, bounds and softmax. It does not check Metal's syntax, its address spaces,
half precision, or what MLX generates around it: those are checked on a Mac, before the kernel is used.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_backend_mlx.metal_kernel import (
    INPUTS,
    LANES,
    SOURCE,
    DecodeKernel,
    Pages,
    attend_plainly,
    check_kernel,
    fits,
)
from parallax_backend_mlx.runtime import mx

PARTS = 2
FRAME = """
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>
using std::exp; using std::max; using uint = unsigned;
#define threadgroup static
#define threadgroup_barrier(flags) everyone.arrive_and_wait()
namespace mem_flags {{ constexpr int mem_threadgroup = 0; }}
struct Place {{ uint x; }};
thread_local uint thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
thread_local Place threadgroup_position_in_grid;
using T = float;
constexpr uint KV_HEADS = {kv_heads}, GROUP = {group}, WIDTH = {width}, VALUE_WIDTH = {value_width};
constexpr int PAGE_SIZE = {page_size}, PARTS = {parts};
std::barrier<> everyone(32 * PARTS);
std::barrier<> simdgroups[] = {{ {barriers} }};
float lanes[PARTS][32];
float simd_sum(float value) {{
    uint part = simdgroup_index_in_threadgroup;
    lanes[part][thread_index_in_simdgroup] = value;
    simdgroups[part].arrive_and_wait();
    float sum = 0;
    for (float each : lanes[part]) sum += each;
    simdgroups[part].arrive_and_wait();
    return sum;
}}
void kernel(const float* queries, const float* keys, const float* values, const uint* table, const int* bounds,
            const uint* num_pages, const float* scale, float* out) {{
{source}
}}
extern "C" void run(const float* queries, const float* keys, const float* values, const uint* table,
                    const int* bounds, const uint* num_pages, const float* scale, float* out, uint units) {{
    std::vector<std::thread> threads;
    for (uint id = 0; id < 32 * PARTS; id++) threads.emplace_back([=] {{
        thread_index_in_simdgroup = id % 32;
        simdgroup_index_in_threadgroup = id / 32;
        for (uint unit = 0; unit < units; unit++) {{
            threadgroup_position_in_grid.x = unit;
            kernel(queries, keys, values, table, bounds, num_pages, scale, out);
            everyone.arrive_and_wait();
        }}
    }});
    for (auto& thread : threads) thread.join();
}}
"""
SHAPES = {
    "grouped": {"kv_heads": 2, "group": 3, "width": 64, "value_width": 64, "page_size": 4},
    "single": {"kv_heads": 1, "group": 4, "width": 96, "value_width": 32, "page_size": 16},
}

Run = Callable[[mx.array, Pages, float], mx.array]


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> dict[str, int]:
    return SHAPES[str(request.param)]


@pytest.fixture(scope="module")
def run(shape: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Compile the kernel's text for a shape, and return what calls it."""
    folder = tmp_path_factory.mktemp("kernel")
    barriers = ", ".join(["std::barrier<>(32)"] * PARTS)
    (folder / "kernel.cpp").write_text(FRAME.format(**shape, parts=PARTS, barriers=barriers, source=SOURCE))
    command = ["g++", "-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True)
    return load_library(folder / "kernel.so")


def load_library(path: Path) -> Run:
    library = ctypes.CDLL(str(path))

    def run(queries: mx.array, pages: Pages, scale: float) -> mx.array:
        rows, heads, _, _ = queries.shape
        out = np.zeros((rows, heads, 1, pages.values.shape[-1]), dtype=np.float32)
        given: dict[str, Any] = {
            "queries": queries,
            "keys": pages.keys,
            "values": pages.values,
            "table": pages.table,
            "bounds": pages.bounds,
            "num_pages": mx.array([pages.table.shape[1]], dtype=mx.uint32),
            "scale": mx.array([scale], dtype=mx.float32),
        }
        arrays = [np.ascontiguousarray(np.array(given[name])) for name in INPUTS]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, out)]
        library.run(*pointers, ctypes.c_uint(rows * heads))
        return mx.array(out)

    return run


def make_pages(shape: dict[str, int], bounds: list[tuple[int, int]], seed: int = 0) -> tuple[mx.array, Pages]:
    """Return random queries, and random pages in random order; what no row may look at is huge."""
    chance = np.random.default_rng(seed)
    heads, size = shape["kv_heads"], shape["page_size"]
    num = -(-max(end for _, end in bounds) // size)
    count = num * len(bounds) + 1
    keys, values = (
        chance.normal(size=(count, heads, size, shape[name])).astype(np.float32) for name in ("width", "value_width")
    )
    table = chance.permutation(count - 1).reshape(len(bounds), num).astype(np.uint32) + 1
    for row, (begin, end) in enumerate(bounds):
        for at in (*range(begin), *range(end, num * size)):
            keys[table[row, at // size], :, at % size] = 50
            values[table[row, at // size], :, at % size] = 1e6
    queries = chance.normal(size=(len(bounds), heads * shape["group"], 1, shape["width"])).astype(np.float32)
    flat = [mx.array(array.reshape(-1, array.shape[-1])) for array in (keys, values)]
    rows = mx.array(np.array(bounds, dtype=np.int32))
    return mx.array(queries), Pages(flat[0], flat[1], mx.array(table), rows, heads, size)


def find_error(found: mx.array, wanted: mx.array) -> float:
    return float(np.abs(np.array(found) - np.array(wanted)).max())


@pytest.mark.parametrize(
    "bounds", [[(0, 1)], [(0, 17)], [(0, 3), (0, 11), (0, 8)], [(5, 9), (3, 4), (0, 2), (7, 16)]], ids=str
)
def test_kernel_computes_what_gathered_attention_does(
    run: Run, shape: dict[str, int], bounds: list[tuple[int, int]]
) -> None:
    queries, pages = make_pages(shape, bounds)
    found, wanted = run(queries, pages, 0.125), attend_plainly(queries, pages, 0.125)
    assert find_error(found, wanted) < 1e-5


def test_large_scores_do_not_overflow(run: Run, shape: dict[str, int]) -> None:
    queries, pages = make_pages(shape, [(0, 13), (2, 9)])
    found, wanted = run(queries * 40, pages, 1.0), attend_plainly(queries * 40, pages, 1.0)
    assert bool(mx.all(mx.isfinite(found)).item())
    assert find_error(found, wanted) < 1e-4


def test_shapes_the_kernel_cannot_do_are_left_to_others() -> None:
    def make(heads: int, tokens: int, width: int) -> mx.array:
        return mx.zeros((1, heads, tokens, width))

    assert fits(make(8, 1, 64), make(2, 9, 64), make(2, 9, 96))
    assert not fits(make(8, 2, 64), make(2, 9, 64), make(2, 9, 64))
    assert not fits(make(8, 1, 48), make(2, 9, 48), make(2, 9, 64))
    assert not fits(make(7, 1, 64), make(2, 9, 64), make(2, 9, 64))
    assert LANES == 32


def test_kernel_that_cannot_be_compiled_is_not_used() -> None:
    """Here because there is no Metal; on a Mac it would be for a reason of Metal's."""
    if not mx.metal.is_available():
        assert "Metal" in check_kernel(DecodeKernel(), mx.float32)


@pytest.mark.needs_metal
@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_kernel_works_on_metal(dtype: mx.Dtype) -> None:
    assert not check_kernel(DecodeKernel(), dtype)
