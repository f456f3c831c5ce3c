"""Runs the rows of a batch on pages; rows of similar length run together, as one rectangle."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from parallax_backend_mlx.cache_layout import Layout, list_leaves
from parallax_backend_mlx.cache_view import PagedView, SlotView
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.page_arrays import PageArrays, Store
from parallax_backend_mlx.page_index import RowRange, SlotMapping
from parallax_backend_mlx.results import Copies, RunResult, find_sums, find_wanted, wants_states
from parallax_backend_mlx.row_groups import Grouping, group_rows
from parallax_backend_mlx.runtime import CacheList, mx
from parallax_backend_mlx.soundness import refuse_unsound
from parallax_backend_mlx.wanted_positions import Wanted
from parallax_core.api import Edit, PagePool, Row

View = PagedView | SlotView
PACE = 3
"""The number of views (mostly one per layer) after which MLX begins to compute while Python prepares the next."""


class PagedRunner:
    """Keeps every sequence of a stage in the pages that its account allocates. Belongs to the thread that made it.

    Args:
        network: the model.
        layout: the layout of its caches.
        pools: the pools of the stage's account, which allocates and frees their pages.
        grouping: the rules by which rows run together.
    """

    def __init__(self, network: Network, layout: Layout, pools: Sequence[PagePool], grouping: Grouping) -> None:
        self._network = network
        self._pools = pools
        self._grouping = grouping
        self._store = Store(layout, [pool.info for pool in pools])
        self._views: list[View] = []
        """The views of the step in progress, which `undo` restores."""

    def reserve(self, num_pages: int) -> None:
        """Allocate ``num_pages`` of each pool now instead of on demand."""
        for index in range(len(self._pools)):
            self._store.reserve(index, [num_pages - 1])

    def edit(self, edit: Edit, copies: Copies) -> None:
        """Apply an edit that the account has made."""
        del edit
        if any(copies):
            self._store.copy(copies)
            mx.eval(self._store.list_arrays())

    def run(self, rows: Sequence[Row], hidden: mx.array | None, copies: Copies) -> RunResult:
        """Run ``rows``, one rectangle at a time."""
        self._views = []
        self._reserve(rows)
        self._store.copy(copies)
        is_last, has_states = self._network.is_last, wants_states(rows)
        firsts = _count_before(len(row.tokens) for row in rows)
        places = _count_before(len(find_wanted(row, is_last=is_last)) for row in rows)
        picked: list[mx.array] = []
        states: list[mx.array] = []
        order: list[int] = []
        for group in group_rows(rows, self._grouping):
            members = [rows[index] for index in group]
            found, seen = self._run_group(members, _take_rows(hidden, rows, group, firsts), has_states=has_states)
            picked += found
            states += seen
            wanted = [len(find_wanted(row, is_last=is_last)) for row in members]
            order += [places[index] + number for index, num in zip(group, wanted, strict=True) for number in range(num)]
        joined = _sort(picked, order)
        return RunResult(joined, _sort(states, order)) if is_last else RunResult(hidden=joined)

    def undo(self) -> None:
        """After a run that raised: restore the states, which are not kept in pages, and evaluate the arrays."""
        for view in reversed(self._views):
            if isinstance(view, SlotView):
                view.undo()
        self._views = []
        mx.eval(self._store.list_arrays())
        self._store.clean()

    def _reserve(self, rows: Sequence[Row]) -> None:
        for index, pool in enumerate(self._pools):
            self._store.reserve(index, (page for row in rows for page in pool.pages(row.seq)[1]))

    def _run_group(
        self, rows: Sequence[Row], hidden: mx.array | None, *, has_states: bool
    ) -> tuple[list[mx.array], list[mx.array]]:
        """Run a rectangle; return its outputs and, if a row asks for them, its states: each a list of 0 or 1 arrays."""
        columns = max(len(row.tokens) for row in rows)
        tokens, wanted, sums = array("i"), array("i"), list[tuple[int, slice]]()
        for index, row in enumerate(rows):
            tokens.extend(row.tokens)
            tokens.extend([0] * (columns - len(row.tokens)))
            sums += [(len(wanted) + output, span) for output, span in find_sums(row, index * columns)]
            wanted.extend(index * columns + offset for offset in find_wanted(row, is_last=self._network.is_last))
        cache, views = self._make_cache(rows)
        places = _upload(wanted) if wanted else None
        asked = None if places is None else Wanted(places, tuple(sums))
        with self._network.adapters.adding(rows):
            result = self._network.run(_upload(tokens).reshape(-1, columns), hidden, cache, asked)
        found = [] if places is None else [result]
        if not self._network.is_last:
            found = [result.reshape(-1, result.shape[-1])[places]]
        states = [self._network.states] if has_states and found and self._network.states is not None else []
        del result, cache
        self._views += views
        sound = _check_last(views)
        mx.eval(found, states, sound, [array for view in views for array in view.commit()])
        for each in sound:
            refuse_unsound(each, [row.seq for row in rows], "the keys")
        return found, states

    def _make_cache(self, rows: Sequence[Row]) -> tuple[list[Any], list[View]]:
        """Return a cache of the network whose own entries are views of pages, and these views."""
        cache: list[Any] = self._network.make_cache()
        places = [self._find_places(rows, pool) for pool in range(len(self._pools))]
        views: list[View] = []
        for entry, layer_caches in self._store.layer_caches.items():
            is_eager = len(views) % PACE == PACE - 1
            made = [self._make_view(each, rows, places[each.pool], is_eager=is_eager) for each in layer_caches]
            views += made
            cache[entry] = _nest(cache[entry], made)
        return cache, views

    def _make_view(self, layer_cache: PageArrays, rows: Sequence[Row], places: SlotMapping, *, is_eager: bool) -> View:
        if layer_cache.leaf.kind != "state":
            return PagedView(layer_cache, places, is_eager=is_eager)
        pool = self._pools[layer_cache.pool]
        return SlotView(layer_cache, [pool.pages(row.seq)[1][0] for row in rows], is_new=rows[0].start == 0)

    def _find_places(self, rows: Sequence[Row], index: int) -> SlotMapping:
        pool = self._pools[index]
        row_ranges = [RowRange(row.start, len(row.tokens), *pool.pages(row.seq)) for row in rows]
        return SlotMapping(row_ranges, pool.info.page_size, pool.info.window)


def _check_last(views: Sequence[View]) -> list[mx.array]:
    """Return which rows are finite so far, or an empty list: NaN in one layer is NaN in the keys of the next."""
    found = (view.check_new() for view in reversed(views) if isinstance(view, PagedView))
    return [each for each in found if each is not None][:1]


def _nest(entry: object, views: Sequence[View]) -> object:
    """Return ``views`` in the form of ``entry``: a single view, or a list of views."""
    if len(list(list_leaves(entry))) == 1 and type(entry) is not CacheList:
        return views[0]
    return CacheList(*views)  # type: ignore[no-untyped-call]


def _count_before(counts: Iterable[int]) -> list[int]:
    before, total = [], 0
    for count in counts:
        before.append(total)
        total += count
    return before


def _take_rows(
    hidden: mx.array | None, rows: Sequence[Row], group: Sequence[int], firsts: Sequence[int]
) -> mx.array | None:
    """Return the hidden states of a group as [rows, columns, width]; padding repeats a token of its row."""
    if hidden is None:
        return None
    columns = max(len(rows[index].tokens) for index in group)
    places = array("i")
    for index in group:
        last = len(rows[index].tokens) - 1
        places.extend(firsts[index] + min(column, last) for column in range(columns))
    return hidden[_upload(places)].reshape(len(group), columns, -1)


def _sort(parts: Sequence[mx.array], order: Sequence[int]) -> mx.array | None:
    """Return the rows of ``parts``, with the i-th moved to ``order[i]``; None if there are no parts."""
    if not parts:
        return None
    joined = parts[0] if len(parts) == 1 else mx.concatenate(list(parts))
    if list(order) == sorted(order):
        return joined
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return joined[mx.array(inverse, dtype=mx.uint32)]


def _upload(numbers: array[int]) -> mx.array:
    return mx.array(numbers)  # type: ignore[arg-type]  # MLX takes buffers, which its type hints omit
