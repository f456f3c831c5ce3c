"""The pages of a rectangle's rows in one pool: computed once per step, and shared by all layers.

Rows differ in length. Columns beyond a row's length are padding, which is written to a page that is never read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from parallax_backend_mlx.runtime import mx

NO_PAGE = -1


@dataclass(frozen=True, slots=True)
class RowRange:
    """One row of a rectangle: tokens ``start`` to ``start + count`` of a sequence, and its pages in one pool."""

    start: int
    count: int
    first: int
    """The number of pages of the sequence before those in ``pages``."""
    pages: tuple[int, ...]


class SlotMapping:
    """The rows of a rectangle in a pool of keys and values.

    Args:
        row_ranges: one for each row.
        page_size: token slots per page.
        window: the number of tokens that a token sees, including itself; 0: all.
    """

    def __init__(self, row_ranges: Sequence[RowRange], page_size: int, window: int = 0) -> None:
        self._page_size = page_size
        self._window = window
        self._row_ranges = [self._skip_hidden(row_range) for row_range in row_ranges]
        self._bases = [row_range.first * page_size for row_range in self._row_ranges]
        self.columns = max(row_range.count for row_range in row_ranges)
        self.span = max(
            row_range.start + row_range.count - base
            for row_range, base in zip(self._row_ranges, self._bases, strict=True)
        )
        """The number of keys that the longest row reads, including the new ones."""
        self._tables: dict[int, mx.array] = {}
        self._slots: dict[int, mx.array] = {}
        self._bounds: dict[int, mx.array] = {}
        self._masks: dict[tuple[int, bool], mx.array | str | None] = {}

    @property
    def offset(self) -> int | mx.array:
        """The number of tokens before each row: an int if all are equal, else int32 of shape [rows]."""
        starts = {row_range.start for row_range in self._row_ranges}
        return starts.pop() if len(starts) == 1 else self._starts

    def table(self, heads: int) -> mx.array:
        """Return the pages of each head to read, uint32 of shape [rows, heads, pages], as indices of page arrays."""
        if heads not in self._tables:
            heads_in_page = mx.arange(heads, dtype=mx.int32).reshape(1, -1, 1)
            found = (self._pages[:, None] + 1) * heads + heads_in_page
            self._tables[heads] = found.astype(mx.uint32)
        return self._tables[heads]

    def slots(self, heads: int) -> mx.array:
        """Return the slots to write, uint32 of shape [rows, heads, columns], as indices of arrays of token slots."""
        if heads not in self._slots:
            heads_in_page = mx.arange(heads, dtype=mx.int32).reshape(1, -1, 1)
            pages, offsets = self._targets
            found = ((pages[:, None] + 1) * heads + heads_in_page) * self._page_size + offsets[:, None]
            self._slots[heads] = found.astype(mx.uint32)
        return self._slots[heads]

    def mask(self, window: int | None, *, as_array: bool) -> mx.array | str | None:
        """Return the attention mask: None for all, ``"causal"``, or bool of shape [rows, 1, columns, span].

        Args:
            window: a narrower window than the pool's, in tokens.
            as_array: never return a name, nor None for more than one column.
        """
        reach = min(filter(None, (window, self._window)), default=0)
        key = reach, as_array
        if key not in self._masks:
            self._masks[key] = self._make_mask(reach, as_array=as_array)
        return self._masks[key]

    @cached_property
    def pages(self) -> mx.array:
        """The index of each page of each row in page arrays, uint32 of shape [rows, pages]; 0 for no page."""
        return (self._pages + 1).astype(mx.uint32)

    def bounds(self, reach: int) -> mx.array:
        """Return the first key that the last column of each row sees, and the one after the last that it sees.

        Args:
            reach: the number of tokens that a token sees, including itself; 0: all.

        Returns:
            int32 of shape [rows, 2], counted from the beginning of the row's first page in `pages`.
        """
        if reach not in self._bounds:
            found = array("i")
            for row_range, base in zip(self._row_ranges, self._bases, strict=True):
                end = row_range.start + row_range.count - base
                found.extend((max(0, end - reach) if reach else 0, end))
            self._bounds[reach] = _upload(found).reshape(-1, 2)
        return self._bounds[reach]

    def find_reach(self, mask: mx.array | str | None) -> int | None:
        """Return the number of tokens that a token sees by ``mask``, 0 for all, or None if `mask` never returned it."""
        found = (reach for (reach, _), made in self._masks.items() if made is mask)
        return next(found, None)

    def _skip_hidden(self, row_range: RowRange) -> RowRange:
        """Remove the leading pages that not even the first token sees."""
        if not self._window:
            return row_range
        skipped = max(0, (row_range.start - self._window + 1) // self._page_size - row_range.first)
        return RowRange(row_range.start, row_range.count, row_range.first + skipped, row_range.pages[skipped:])

    def _make_mask(self, reach: int, *, as_array: bool) -> mx.array | str | None:
        if self._is_plain(reach) and not (as_array and self.columns > 1):
            return None if self.columns == 1 else "causal"
        keys = self._offsets[:, None] + mx.arange(self.span, dtype=mx.int32)
        queries = self._starts[:, None] + mx.arange(self.columns, dtype=mx.int32)
        seen = keys[:, None] <= queries[:, :, None]
        if reach:
            seen &= keys[:, None] > queries[:, :, None] - reach
        return seen[:, None]

    def _is_plain(self, reach: int) -> bool:
        """Whether every row sees all tokens before it, and rows do not differ."""
        ends = {
            row_range.start + row_range.count - base
            for row_range, base in zip(self._row_ranges, self._bases, strict=True)
        }
        counts = {row_range.count for row_range in self._row_ranges}
        return len(ends) == len(counts) == 1 and not (reach and self.span > reach)

    @cached_property
    def _starts(self) -> mx.array:
        return _upload(array("i", [row_range.start for row_range in self._row_ranges]))

    @cached_property
    def _offsets(self) -> mx.array:
        return _upload(array("i", self._bases))

    @cached_property
    def _pages(self) -> mx.array:
        """The pages of each row, int32 of shape [rows, pages], padded with `NO_PAGE`."""
        num = -(-self.span // self._page_size)
        pages = array("i")
        for row_range in self._row_ranges:
            pages.extend(row_range.pages[:num])
            pages.extend([NO_PAGE] * (num - len(row_range.pages)))
        return _upload(pages).reshape(-1, num)

    @cached_property
    def _targets(self) -> tuple[mx.array, mx.array]:
        """The page of each new token and its offset in it, int32 of shape [rows, columns]; padding has no page."""
        columns = mx.arange(self.columns, dtype=mx.int32)
        counts = _upload(array("i", [row_range.count for row_range in self._row_ranges]))
        places = (self._starts - self._offsets)[:, None] + columns
        at = mx.minimum(places // self._page_size, self._pages.shape[1] - 1)
        pages = mx.take_along_axis(self._pages, at, axis=1)
        return mx.where(columns < counts[:, None], pages, NO_PAGE), places % self._page_size


def _upload(numbers: array[int]) -> mx.array:
    """Return ``numbers`` as int32, copied from their buffer and not one by one."""
    return mx.array(numbers)  # type: ignore[arg-type]  # MLX takes buffers, which its type hints omit
