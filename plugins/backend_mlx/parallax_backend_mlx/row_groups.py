"""Groups the rows of a batch that run together, as one rectangle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from parallax_core.api import Row

Key = tuple[bool, Hashable]
MAX_WASTE = 0.25
"""The most padding in a rectangle of prefill chunks, as a share of its tokens."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The rules by which rows run together."""

    is_batched: bool
    """Whether rows run together at all; otherwise each row runs alone."""
    has_states: bool
    """Whether layers keep states, which padding would change: then only rows of equal length, all new or none new."""
    spare_keys: int
    """Keys of padding that may be read before it is cheaper to run the model once more for the shorter rows."""


def group_rows(rows: Sequence[Row], grouping: Grouping) -> list[list[int]]:
    """Return the indices of ``rows`` that run together; each is in one group, and a decode with decodes only."""
    if not grouping.is_batched:
        return [[index] for index in range(len(rows))]
    order = sorted(range(len(rows)), key=lambda index: _rank(rows[index], grouping))
    groups: list[list[int]] = []
    for _, alike in groupby(order, key=lambda index: _find_kind(rows[index], grouping)):
        groups += _split(list(alike), lambda group: _is_wasteful([rows[index] for index in group], grouping))
    return groups


def _find_kind(row: Row, grouping: Grouping) -> tuple[int, bool]:
    """Return the key that rows must share to run together."""
    if grouping.has_states:
        return len(row.tokens), row.start == 0
    return min(len(row.tokens), 2), False


def _rank(row: Row, grouping: Grouping) -> tuple[tuple[int, bool], int, int]:
    return _find_kind(row, grouping), len(row.tokens), row.start


def _split(order: Sequence[int], is_wasteful: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Yield consecutive parts of ``order``, each as long as possible without being wasteful."""
    group: list[int] = []
    for index in order:
        if group and is_wasteful([*group, index]):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _is_wasteful(rows: Sequence[Row], grouping: Grouping) -> bool:
    counts = [len(row.tokens) for row in rows]
    ends = [row.start + len(row.tokens) for row in rows]
    pads = len(rows) * max(counts) - sum(counts)
    idle_keys = len(rows) * max(ends) - sum(ends)
    return pads > MAX_WASTE * sum(counts) or idle_keys > max(grouping.spare_keys, sum(ends))
