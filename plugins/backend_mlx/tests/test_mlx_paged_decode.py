"""Decodes straight from the pages: the same numbers as from keys that were gathered, in real model files.

The kernel itself runs on Metal only. Here what it must compute stands in for it, `attend_plainly`: so this proves which
pages, bounds and arrays it is given, and when; the arithmetic is that of ``test_mlx_kernel.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import base, deepseek_v3, gemma3_text, gpt_oss, llama

from parallax_backend_mlx import attention, paged_decode, patches
from parallax_backend_mlx.attention import choose_attention
from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.cache_layout import Leaf, Part
from parallax_backend_mlx.cache_view import PagedView
from parallax_backend_mlx.metal_kernel import Pages, attend_plainly
from parallax_backend_mlx.page_arrays import PageArrays
from parallax_backend_mlx.page_index import RowRange, SlotMapping
from parallax_backend_mlx.paged_decode import PagedAttention, find_attention
from parallax_backend_mlx.patches import ATTENTION, replace_functions
from parallax_backend_mlx.runtime import KVCache, mx, plain_attention
from parallax_core.api import Answer, Draw, Drawn, Fork, Open, Row, Sampling, SeqId, SequenceSpec, StageBatch, StagePlan

PAGE, HEADS, WIDTH = 4, 2, 32
DTYPES = frozenset([mx.float32])
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))


class Plain:
    """What the kernel must compute, by gathering; counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, queries: mx.array, pages: Pages, scale: float) -> mx.array:
        self.calls += 1
        return attend_plainly(queries, pages, scale)


def make_view(row_ranges: list[RowRange], window: int = 0) -> PagedView:
    """Return a view of rows in page arrays of noise."""
    return PagedView(make_arrays(window), SlotMapping(row_ranges, PAGE, window))


def make_arrays(window: int = 0, dtype: mx.Dtype = mx.float32) -> PageArrays:
    """Return page arrays of noise; the page before all others has huge numbers."""
    part = Part((HEADS, WIDTH), dtype)
    layer_cache = PageArrays(Leaf("window" if window else "full", (part, part), window), 0, PAGE)
    layer_cache.grow(40)
    for index, array in enumerate(layer_cache.arrays):
        noise = mx.random.normal(array.shape, dtype, key=mx.random.key(index))
        noise[: HEADS * PAGE] = 1000.0
        layer_cache.arrays[index] = noise
    return layer_cache


CASES: dict[str, tuple[list[RowRange], int]] = {
    "first token": ([RowRange(0, 1, 0, (5,))], 0),
    "one row": ([RowRange(9, 1, 0, (5, 2, 7))], 0),
    "page just full": ([RowRange(7, 1, 0, (5, 2))], 0),
    "page just begun": ([RowRange(8, 1, 0, (5, 2, 9))], 0),
    "equal rows": ([RowRange(9, 1, 0, (5, 2, 7)), RowRange(9, 1, 0, (1, 0, 3))], 0),
    "ragged rows": ([RowRange(9, 1, 0, (5, 2, 7)), RowRange(0, 1, 0, (1,)), RowRange(17, 1, 0, (3, 4, 6, 8, 9))], 0),
    "shared pages": ([RowRange(9, 1, 0, (5, 2, 7)), RowRange(10, 1, 0, (5, 2, 3)), RowRange(8, 1, 0, (5, 2, 4))], 0),
    "window not full": ([RowRange(2, 1, 0, (5,)), RowRange(4, 1, 0, (1, 0))], 6),
    "window": ([RowRange(9, 1, 0, (5, 2, 7)), RowRange(17, 1, 1, (4, 6, 8, 9)), RowRange(0, 1, 0, (0,))], 6),
    "window that forgot": ([RowRange(29, 1, 6, (5, 2)), RowRange(30, 1, 5, (1, 0, 3))], 5),
    "window as wide as a row": ([RowRange(5, 1, 0, (5, 2)), RowRange(5, 1, 0, (1, 0))], 6),
}


@pytest.mark.parametrize("narrower", [None, 3], ids=["own window", "narrower"])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("case", CASES)
def test_pages_hold_what_is_gathered(case: str, heads: int, narrower: int | None) -> None:
    row_ranges, window = CASES[case]
    view = make_view(row_ranges, window)
    fresh = mx.random.normal((len(row_ranges), HEADS, 1, WIDTH), key=mx.random.key(5))
    mask: Any = view.make_mask(1, window_size=narrower)
    keys, values = view.update_and_fetch(fresh, fresh * 2)
    queries = mx.random.normal((len(row_ranges), heads, 1, WIDTH), key=mx.random.key(6))
    kernel = Plain()
    found = PagedAttention(kernel, DTYPES)(queries, keys, values, view, 0.3, mask)
    expected = base.scaled_dot_product_attention(queries, keys, values, KVCache(), 0.3, mask)  # type: ignore[no-untyped-call]
    assert kernel.calls == 1
    assert found.shape == expected.shape
    assert mx.allclose(found, expected, atol=1e-5).item()


def test_mask_of_another_view_of_the_same_places_is_known() -> None:
    """A model takes the masks of all layers from the first one of a kind."""
    places, layer_cache = SlotMapping([RowRange(9, 1, 0, (5, 2, 7)), RowRange(4, 1, 0, (1, 0))], PAGE, 0), make_arrays()
    first, second = PagedView(layer_cache, places), PagedView(layer_cache, places)
    fresh = mx.zeros((2, HEADS, 1, WIDTH))
    second.update_and_fetch(fresh, fresh)
    assert second.find_pages(first.make_mask(1)) is not None


@pytest.mark.parametrize("case", ["sinks", "own mask", "no mask", "other keys", "chunk", "dtype", "cache"])
def test_everything_else_is_left_to_mlx_lm(case: str) -> None:
    columns = 2 if case == "chunk" else 1
    view = make_view([RowRange(9, columns, 0, (5, 2, 7)), RowRange(4, columns, 0, (1, 0))])
    fresh = mx.random.normal((2, HEADS, columns, WIDTH), key=mx.random.key(5))
    mask: Any = view.make_mask(columns)
    keys, values = view.update_and_fetch(fresh, fresh)
    sinks = mx.zeros((HEADS,)) if case == "sinks" else None
    if case == "own mask":
        mask = mx.ones((2, 1, 1, 10), dtype=mx.bool_)
    if case == "no mask":
        mask = None
    if case == "other keys":
        keys = keys * 2
    kernel = Plain()
    ours = PagedAttention(kernel, frozenset([mx.float16]) if case == "dtype" else DTYPES)
    given: Any = KVCache() if case == "cache" else view  # type: ignore[no-untyped-call]
    found = ours(fresh, keys, values, cache=given, scale=0.3, mask=mask, sinks=sinks)
    expected = base.scaled_dot_product_attention(fresh, keys, values, KVCache(), 0.3, mask, sinks)  # type: ignore[no-untyped-call]
    assert kernel.calls == 0
    assert mx.array_equal(found, expected).item()


def run_model(folder: Path) -> list[Answer]:
    """Return what is drawn in decodes of a model: of rows that differ in length, and of forks that share pages."""
    stage = MlxBackend().open_stage(StagePlan(model=folder))
    found: list[Answer] = []
    lengths = {SeqId(0): 3, SeqId(1): 21, SeqId(2): 33}
    for seq, length in lengths.items():
        stage.edit([Open(seq, SPEC)])
        stage.step(StageBatch((Row(seq, 0, tuple(range(length))),)))
    stage.edit([Fork(SeqId(2), SeqId(3), 33)])
    lengths[SeqId(3)] = 33
    for number in range(4):
        rows = [Row(seq, length + number, (seq + number + 5,), (Draw(0, 1, 97),)) for seq, length in lengths.items()]
        found += stage.step(StageBatch(tuple(rows))).wait().answers
    stage.close()
    return found


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Plain:
    """Have model files call the kernel's stand-in, as on Metal."""
    plain = Plain()
    ours = PagedAttention(plain, DTYPES)
    monkeypatch.setattr(patches, "choose_attention", lambda _: ours)
    for module in (llama, gemma3_text, gpt_oss, deepseek_v3):
        monkeypatch.setattr(module, ATTENTION, plain_attention)
    return plain


@pytest.mark.parametrize(("name", "is_used"), [("llama", True), ("gemma3_text", True), ("deepseek_v3", False)])
def test_model_decodes_from_its_pages(
    make_tiny: Callable[..., Path], kernel: Plain, monkeypatch: pytest.MonkeyPatch, name: str, is_used: bool
) -> None:
    """The latents of deepseek_v3 are no keys and values, and are gathered."""
    folder = make_tiny(name, head_dim=WIDTH)
    found = run_model(folder)
    assert (kernel.calls > 0) == is_used
    monkeypatch.undo()
    calls, expected = kernel.calls, run_model(folder)
    assert kernel.calls == calls
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Drawn)
        assert isinstance(other, Drawn)
        assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-4)


def test_kernel_is_not_used_where_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    """As here, where there is no Metal: keys are gathered, and the log says why."""
    if mx.metal.is_available():
        assert find_attention() is not None
        return
    find_attention.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert find_attention() is None
    assert caplog.text.count("decode kernel not used, keys are gathered") == 3
    assert "Metal" in caplog.text


def test_kernel_is_not_used_for_a_dtype_it_is_wrong_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, used = Plain(), list[mx.Dtype]()
    monkeypatch.setattr(paged_decode, "DecodeKernel", lambda: plain)
    monkeypatch.setattr(paged_decode, "check_kernel", lambda _, dtype: "off by 1" if dtype == mx.float16 else "")
    find_attention.cache_clear()
    found = find_attention()
    find_attention.cache_clear()
    assert found is not None
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        view = PagedView(make_arrays(dtype=dtype), SlotMapping([RowRange(9, 1, 0, (5, 2, 7))], PAGE, 0))
        fresh, mask, calls = mx.ones((1, HEADS, 1, WIDTH), dtype), view.make_mask(1), plain.calls
        found(fresh, *view.update_and_fetch(fresh, fresh), view, 0.3, mask)
        used += [dtype] * (plain.calls - calls)
    assert used == [mx.float32, mx.bfloat16]


def test_kernel_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(attention, "find_attention", lambda: asked.append("kernel"))
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    choose_attention("off")
    assert asked == []
    choose_attention("auto")
    assert asked == ["kernel"]


def test_installing_leaves_what_is_installed(kernel: Plain) -> None:
    replace_functions()
    installed = vars(llama)[ATTENTION]
    replace_functions()
    assert isinstance(installed, PagedAttention)
    assert vars(llama)[ATTENTION] is installed
