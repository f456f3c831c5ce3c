"""The kernels in Triton give what PyTorch gives on the same device, and where they do not run, PyTorch is used."""

from __future__ import annotations

import logging
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from parallax_backend_torch import arithmetic, device_kernels
from parallax_backend_torch.arithmetic import Norm, attend_rectangles, rotate
from parallax_backend_torch.device_kernels import DEVICE_KERNELS, DeviceKernels
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.layer_factory import DeviceLinear
from parallax_backend_torch.page_grid import Grid, Table

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICE = "cuda"
CLOSE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
PAGE, PAGES = 16, 700
FAR = 300
"""The position from which on the first pages of a row are gone."""


@pytest.fixture(params=CLOSE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Return a dtype of activations; there are kernels."""
    assert DEVICE_KERNELS.find(torch.device(DEVICE)) is not None
    found: torch.dtype = request.param
    return found


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return random numbers on the device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def run_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PyTorch do everything from here on."""
    monkeypatch.setattr(DeviceKernels, "find", lambda *_: None)


def check(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Assert that two results are close for a dtype, and of it."""
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])


def make_grid(groups: list[tuple[list[int], int]]) -> Grid:
    """Return tables of rows that start at positions and have some tokens each; their pages lie about in a pool.

    Of a row that is long enough, the first pages are gone.
    """
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1)).tolist()
    tables = []
    for starts, tokens in groups:
        gone = [3 if start >= FAR else 0 for start in starts]
        needs = [-(-(start + tokens) // PAGE) - each for start, each in zip(starts, gone, strict=True)]
        pages = torch.zeros(len(starts), max(needs), dtype=torch.int64)
        for row, need in enumerate(needs):
            pages[row, :need] = torch.tensor([order.pop() for _ in range(need)])
        numbers = torch.tensor(starts).to(DEVICE), PAGE * torch.tensor(gone).to(DEVICE)
        tables.append(Table(*numbers, pages.to(DEVICE), tokens, PAGE))
    return Grid(tables, 0)


def make_pool(grid: Grid, shape: tuple[int, int], dtype: torch.dtype) -> Pool:
    """Return keys and values of all tokens up to the last of each row; all else is NaN."""
    keys, values = (torch.full((PAGES * PAGE, *shape), torch.nan, device=DEVICE, dtype=dtype) for _ in range(2))
    for table in grid.tables:
        lasts = (table.starts + table.tokens).tolist()
        for row, (base, last) in enumerate(zip(table.bases.tolist(), lasts, strict=True)):
            at = torch.arange(last - base, device=DEVICE)
            slots = table.pages[row][at // PAGE] * PAGE + at % PAGE
            keys[slots], values[slots] = (draw(len(slots), *shape, dtype=dtype, seed=row + seed) for seed in (1, 100))
    return Pool(keys, values)


GROUPS = {
    "decodes": [([0, 15, 16, 17, 300, 1023, 1600], 1)],
    "one long row": [([5000], 1)],
    "prompt": [([0], 333)],
    "chunk behind others": [([700], 150)],
    "mixed": [([40], 77), ([3, 900], 1), ([500, 2], 5)],
}
SHAPES = {
    "4 to 1": (8, 2, 64),
    "not a power of two": (6, 2, 80),
    "one each": (2, 2, 128),
    "wide": (8, 1, 256),
    "narrow": (4, 2, 8),
}


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize(("groups", "shape"), list(product(GROUPS, SHAPES)))
def test_attention_over_pages_is_that_of_pytorch(
    groups: str, shape: str, window: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, (heads, kv_heads, width) = make_grid(GROUPS[groups]), SHAPES[shape]
    pool, rule = make_pool(grid, (kv_heads, width), dtype), Rule(width**-0.5, window)
    tokens = sum(len(table.starts) * table.tokens for table in grid.tables)
    fused = draw(tokens, heads + kv_heads, width, dtype=dtype, seed=7)  # queries lie beside other heads
    found = attend_rectangles(fused[:, :heads], pool, grid, rule)
    assert not grid.is_padded
    run_plainly(monkeypatch)
    check(found, attend_rectangles(fused[:, :heads], pool, grid, rule), dtype)
    assert grid.is_padded


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("rule", [Rule(0.1, soft_cap=5.0), Rule(0.1, sinks=torch.zeros(8))], ids=["cap", "sinks"])
def test_pytorch_attends_where_there_is_no_kernel(rule: Rule) -> None:
    if rule.sinks is not None:
        rule = Rule(rule.scale, sinks=rule.sinks.to(DEVICE))
    grid = make_grid(GROUPS["mixed"])
    pool, query = make_pool(grid, (2, 16), torch.float32), draw(77 + 2 + 10, 8, 16)
    assert attend_rectangles(query, pool, grid, rule).isfinite().all()
    assert grid.is_padded


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("shape", [(1, 4096), (7, 80), (5, 3, 128), (0, 64)])
def test_norm_is_that_of_pytorch(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(*shape, dtype=dtype)
    norms = [Norm(draw(shape[-1], seed=3), 1e-5, offset) for offset in (0.0, 1.0)]
    found = [norm(x) for norm in norms]
    run_plainly(monkeypatch)
    for each, norm in zip(found, norms, strict=True):
        check(each, norm(x), dtype)


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize(("tokens", "heads", "half"), [(1, 8, 64), (9, 5, 40), (3, 40, 16)])
def test_rope_is_that_of_pytorch(
    tokens: int, heads: int, half: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    angles = draw(tokens, half, seed=5)
    fused = draw(tokens, heads + 2, 2 * half + 8, dtype=dtype)  # some numbers of a head are not rotated
    expected = fused.clone()
    rotate(fused[:, :heads], (angles.cos(), angles.sin()))
    run_plainly(monkeypatch)
    rotate(expected[:, :heads], (angles.cos(), angles.sin()))
    check(fused, expected, dtype)


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (5, 40)])
def test_gates_are_those_of_pytorch(rows: int, width: int, gate: str, dtype: torch.dtype) -> None:
    weight, x = draw(2 * width, 64, dtype=dtype, seed=2) / 8, draw(rows, 64, dtype=dtype)
    found = DeviceLinear(weight, None).apply_gated(x, gate)  # type: ignore[arg-type]  # one of `Gate`
    first, second = functional.linear(x, weight).chunk(2, dim=1)
    bent = functional.silu(first) if gate == "silu" else functional.gelu(first, approximate="tanh")
    check(found, bent * second, dtype)


def test_kernels_are_of_cuda_devices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceKernels, "_load", lambda *_: arithmetic)
    kernels = DeviceKernels()
    assert kernels.find(torch.device("cpu")) is None
    assert kernels.find(torch.device("mps")) is None
    assert kernels.find(torch.device("cuda", 1)) is arithmetic


def test_each_device_is_tried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7 + device.index, 0))
    monkeypatch.setattr(device_kernels, "find_spec", lambda _: "there")
    tried: list[torch.device] = []
    module = SimpleNamespace(LEAST_CAPABILITY=(8, 0), try_kernels=tried.append)
    monkeypatch.setattr(device_kernels, "import_module", lambda _: module)
    kernels, old, new = DeviceKernels(), torch.device("cuda", 0), torch.device("cuda", 1)
    assert [kernels.find(each) for each in (old, new, new)] == [None, module, module]
    assert tried == [new]


def test_pytorch_is_used_without_triton(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_kernels, "find_spec", lambda _: None)
    assert DeviceKernels().find(torch.device("cuda")) is None
    assert not caplog.text, "Triton is not installed, which is nothing to warn about"


def test_kernels_that_do_not_compile_are_told_once_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(f"{name} finds no C compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_kernels, "find_spec", lambda _: "there")
    monkeypatch.setattr(device_kernels, "import_module", fail)
    kernels = DeviceKernels()
    with caplog.at_level(logging.WARNING):
        assert kernels.find(torch.device("cuda")) is None
        assert kernels.find(torch.device("cuda")) is None
    assert caplog.text.count("finds no C compiler") == 1


def test_kernels_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceKernels, "_load", lambda *_: arithmetic)
    kernels = DeviceKernels()
    assert kernels.find(torch.device("cuda")) is arithmetic
    kernels.choose(is_on=False)
    assert kernels.find(torch.device("cuda")) is None
