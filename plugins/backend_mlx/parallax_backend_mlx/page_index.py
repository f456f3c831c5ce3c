"""The places of a rectangle's rows in one pool: built once in a step, and shared by all layers.

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
class Stretch:
    """One row of a rectangle: tokens ``start`` to ``start + count`` of a sequence, and the pages of one pool for it."""

    start: int
    count: int
    first: int
    """The number of pages at the beginning of the sequence that are not in ``pages``."""
    pages: tuple[int, ...]


class Places:
    """The rows of a rectangle in a pool of keys and values.

    Args:
        stretches: one for each row.
        page_size: token slots per page.
        window: how many tokens a token sees, itself included; 0: all.
    """

    def __init__(self, stretches: Sequence[Stretch], page_size: int, window: int = 0) -> None:
        self._page_size = page_size
        self._window = window
        self._stretches = [self._skip_hidden(stretch) for stretch in stretches]
        self._bases = [stretch.first * page_size for stretch in self._stretches]
        self.columns = max(stretch.count for stretch in stretches)
        self.span = max(
            stretch.start + stretch.count - base for stretch, base in zip(self._stretches, self._bases, strict=True)
        )
        """The number of keys that the longest row reads, the new ones included."""
        self._tables: dict[int, mx.array] = {}
        self._slots: dict[int, mx.array] = {}
        self._bounds: dict[int, mx.array] = {}
        self._masks: dict[tuple[int, bool], mx.array | str | None] = {}

    @property
    def offset(self) -> int | mx.array:
        """The number of tokens before each row: one number if all are equal, else int32 of shape [rows]."""
        starts = {stretch.start for stretch in self._stretches}
        return starts.pop() if len(starts) == 1 else self._starts

    def table(self, heads: int) -> mx.array:
        """Return which page of which head to read, uint32 of shape [rows, heads, pages], for arrays of pages."""
        if heads not in self._tables:
            heads_in_page = mx.arange(heads, dtype=mx.int32).reshape(1, -1, 1)
            found = (self._pages[:, None] + 1) * heads + heads_in_page
            self._tables[heads] = found.astype(mx.uint32)
        return self._tables[heads]

    def slots(self, heads: int) -> mx.array:
        """Return where to write, uint32 of shape [rows, heads, columns], for arrays of token slots."""
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
        """Where the pages of each row lie in a bank, uint32 of shape [rows, pages]; 0 where a row has none."""
        return (self._pages + 1).astype(mx.uint32)

    def bounds(self, reach: int) -> mx.array:
        """Return the first key that the last column of each row sees, and the one after the last it sees.

        Args:
            reach: how many tokens a token sees, itself included; 0: all.

        Returns:
            int32 of shape [rows, 2], counted from the beginning of the row's first page in `pages`.
        """
        if reach not in self._bounds:
            found = array("i")
            for stretch, base in zip(self._stretches, self._bases, strict=True):
                end = stretch.start + stretch.count - base
                found.extend((max(0, end - reach) if reach else 0, end))
            self._bounds[reach] = _upload(found).reshape(-1, 2)
        return self._bounds[reach]

    def find_reach(self, mask: mx.array | str | None) -> int | None:
        """Return how many tokens a token sees by ``mask``, 0 for all, or None if `mask` never returned it."""
        found = (reach for (reach, _), made in self._masks.items() if made is mask)
        return next(found, None)

    def _skip_hidden(self, stretch: Stretch) -> Stretch:
        """Leave out the pages in front that not even the first token sees."""
        if not self._window:
            return stretch
        skipped = max(0, (stretch.start - self._window + 1) // self._page_size - stretch.first)
        return Stretch(stretch.start, stretch.count, stretch.first + skipped, stretch.pages[skipped:])

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
        """Whether every row sees all that is before it, and rows do not differ."""
        ends = {
            stretch.start + stretch.count - base for stretch, base in zip(self._stretches, self._bases, strict=True)
        }
        counts = {stretch.count for stretch in self._stretches}
        return len(ends) == len(counts) == 1 and not (reach and self.span > reach)

    @cached_property
    def _starts(self) -> mx.array:
        return _upload(array("i", [stretch.start for stretch in self._stretches]))

    @cached_property
    def _offsets(self) -> mx.array:
        return _upload(array("i", self._bases))

    @cached_property
    def _pages(self) -> mx.array:
        """The pages of each row, int32 of shape [rows, pages]; where a row has none, `NO_PAGE`."""
        num = -(-self.span // self._page_size)
        pages = array("i")
        for stretch in self._stretches:
            pages.extend(stretch.pages[:num])
            pages.extend([NO_PAGE] * (num - len(stretch.pages)))
        return _upload(pages).reshape(-1, num)

    @cached_property
    def _targets(self) -> tuple[mx.array, mx.array]:
        """Page and offset in it of each token to be written, int32 of shape [rows, columns]; padding has no page."""
        columns = mx.arange(self.columns, dtype=mx.int32)
        counts = _upload(array("i", [stretch.count for stretch in self._stretches]))
        places = (self._starts - self._offsets)[:, None] + columns
        at = mx.minimum(places // self._page_size, self._pages.shape[1] - 1)
        pages = mx.take_along_axis(self._pages, at, axis=1)
        return mx.where(columns < counts[:, None], pages, NO_PAGE), places % self._page_size


def _upload(numbers: array[int]) -> mx.array:
    """Return ``numbers`` as int32, taken from their buffer and not one by one."""
    return mx.array(numbers)  # type: ignore[arg-type]  # MLX takes buffers, and does not say so
