"""Sends the numbers of a step to a device in one upload."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from struct import pack

import torch

from parallax_backend_torch.page_grid import Grid, Table
from parallax_backend_torch.step import Slots, Step, flatten_rows, make_caches
from parallax_backend_torch.store import Store
from parallax_core.api import PagePool, PoolInfo, Row
from parallax_sampling_torch.tensors import send


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a group of rows with the same number of tokens."""

    rows: int
    tokens: int
    """The number of tokens of each row."""
    pages: tuple[int, ...]
    """The number of pages in the table of each row, for each pool."""


class StepUpload:
    """The rows of a step, and their pages.

    Args:
        rows: the rows of the step.
        pools: the pools, after pages were taken for the rows; none of them has states.
    """

    def __init__(self, rows: Sequence[Row], pools: Sequence[PagePool]) -> None:
        self.rows = rows
        self._groups = list_groups(rows)
        self._infos = [pool.info for pool in pools]
        self._tables = [[[read_pages(pool, row) for row in group] for group in self._groups] for pool in pools]

    def measure(self) -> list[Extent]:
        """Return the size of each group."""
        return [
            Extent(
                rows=len(group),
                tokens=len(group[0].tokens),
                pages=tuple(max(len(pages) for _, pages in tables[number]) for tables in self._tables),
            )
            for number, group in enumerate(self._groups)
        ]

    def write(self, extents: Sequence[Extent]) -> array[int]:
        """Return the numbers; see `open_step_upload`.

        Padding rows have one token, and use the spare page of each pool.

        Args:
            extents: the sizes from `measure`, or larger ones.
        """
        words = array("q")
        for group, extent in zip(self._groups, extents, strict=True):
            _extend(words, chain.from_iterable([row.tokens for row in group]), extent.rows * extent.tokens)
        for group, extent in zip(self._groups, extents, strict=True):
            _extend(words, chain.from_iterable(map(list_positions, group)), extent.rows * extent.tokens)
        for group, extent in zip(self._groups, extents, strict=True):
            _extend(words, [row.start for row in group], extent.rows)
        for number, (info, tables) in enumerate(zip(self._infos, self._tables, strict=True)):
            for table, extent in zip(tables, extents, strict=True):
                width, spare = extent.pages[number], array("q", (info.num_pages,))
                _extend(words, [base for base, _ in table], extent.rows)
                for _, pages in table:
                    words.frombytes(pack(f"{len(pages)}q", *pages))  # several times faster than `extend`
                    words += spare * (width - len(pages))
                words += spare * (width * (extent.rows - len(table)))
        return words


@dataclass(frozen=True, eq=False, slots=True)
class Opened:
    """The numbers of a step on a device."""

    tokens: torch.Tensor
    """Token ids, int64 of shape [tokens]."""
    positions: torch.Tensor
    """int64 of shape [tokens]."""
    grids: list[Grid]
    """One for each pool."""


def open_step_upload(words: torch.Tensor, extents: Sequence[Extent], pools: Sequence[PoolInfo]) -> Opened:
    """Return the tensors in ``words``, int64 on a device, as `StepUpload.write` wrote them, over the same memory."""
    parts = _Parts(words)
    count = sum(extent.rows * extent.tokens for extent in extents)
    tokens, positions = parts.take(count), parts.take(count)
    starts = [parts.take(extent.rows) for extent in extents]
    grids = []
    for number, info in enumerate(pools):
        tables = [
            Table(
                starts=start,
                bases=parts.take(extent.rows),
                pages=parts.take(extent.rows, extent.pages[number]),
                tokens=extent.tokens,
                page_size=info.page_size,
            )
            for start, extent in zip(starts, extents, strict=True)
        ]
        grids.append(Grid(tables, info.window))
    return Opened(tokens, positions, grids)


def send_step(rows: Sequence[Row], pools: Sequence[PagePool], store: Store) -> Step:
    """Return ``rows``, for which pages were taken, as a step on a device other than a CPU."""
    paged = [pool for pool in pools if pool.info.kind != "state"]
    step_upload = StepUpload(rows, paged)
    extents = step_upload.measure()
    sent = send(step_upload.write(extents), store.device)
    opened = open_step_upload(sent, extents, [pool.info for pool in paged])
    grids, flat = iter(opened.grids), flatten_rows(rows, store.device)
    places = [Slots(flat, pool, rows) if pool.info.kind == "state" else next(grids) for pool in pools]
    return Step(opened.tokens, opened.positions, make_caches(store, places))


def list_groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows in groups of one rectangle each: consecutive rows of one token, and every other row alone."""
    groups: list[list[Row]] = []
    for row in rows:
        if groups and len(row.tokens) == len(groups[-1][0].tokens) == 1:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def read_pages(pool: PagePool, row: Row) -> tuple[int, tuple[int, ...]]:
    """Return the pages that a row sees, and the position of the first slot in them."""
    first, pages = pool.pages(row.seq)
    info = pool.info
    low = max(first, (row.start - info.window + 1) // info.page_size) if info.window else first
    return low * info.page_size, pages[low - first :]


def list_positions(row: Row) -> Sequence[int]:
    """Return the positions of a row's tokens: those given, or consecutive ones."""
    return row.positions or range(row.start, row.start + len(row.tokens))


def _extend(words: array[int], values: Iterable[int], size: int) -> None:
    """Append ``values``, padded to ``size`` with zeros."""
    stop = len(words) + size
    words.extend(values)
    words.frombytes(bytes(words.itemsize * (stop - len(words))))


class _Parts:
    """Reads consecutive parts of a tensor of numbers."""

    def __init__(self, words: torch.Tensor) -> None:
        self._words, self._done = words, 0

    def take(self, *shape: int) -> torch.Tensor:
        """Return the next numbers, in a shape."""
        first = self._done
        self._done += math.prod(shape)
        return self._words[first : self._done].view(shape)
