"""Page tables on devices: rectangles of rows of equal length, made once for all layers.

Every shape follows from the shapes of the tables, and no result is read back, so the same work can be recorded once and
replayed with other numbers in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.step import SlotMapping


@dataclass(frozen=True, eq=False, slots=True)
class Sight:
    """The keys that the queries of a table see."""

    slots: torch.Tensor
    """int64 of shape [rows, seen]. Padded with the row's last slot, since slots never written may hold NaN."""
    mask: torch.Tensor
    """bool of shape [rows, tokens, seen]: whether a query sees a key; each query sees at least its own."""


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """The pages of rows with the same number of tokens; all tensors are int64 on the device."""

    starts: torch.Tensor
    """The position of a row's first query, of shape [rows]."""
    bases: torch.Tensor
    """The position of the first slot in its first page, of shape [rows]."""
    pages: torch.Tensor
    """The pages, of shape [rows, pages]; entries after a row's last page are never used."""
    tokens: int
    """The number of tokens of each row."""
    page_size: int

    def find_queries(self) -> torch.Tensor:
        """Return the positions of the queries, int64 of shape [rows, tokens]."""
        return self.starts[:, None] + torch.arange(self.tokens, device=self.starts.device)

    def find_slots(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of positions of each row, int64 of shape [rows, any]."""
        at = positions - self.bases[:, None]
        return self.pages.gather(1, at // self.page_size) * self.page_size + at % self.page_size

    def look(self, window: int) -> Sight:
        """Return the keys seen with a window; 0: all keys up to the query's own."""
        queries, room = self.find_queries(), self.pages.shape[1] * self.page_size
        seen = self.bases[:, None] + torch.arange(room, device=self.bases.device)
        distance = queries[:, :, None] - seen[:, None, :]
        mask = distance >= 0
        mask = mask & (distance < window) if window else mask
        return Sight(self.find_slots(torch.minimum(seen, queries[:, -1:])), mask)


class Grid(SlotMapping):
    """See `SlotMapping`.

    Args:
        tables: the tables, in the order of the tokens.
        window: the window of the pool.
    """

    def __init__(self, tables: Sequence[Table], window: int) -> None:
        self.tables, self.window = tables, window
        self.slots = torch.cat([table.find_slots(table.find_queries()).flatten() for table in tables])
        self._sights: dict[tuple[int, int], Sight] = {}

    @property
    def is_padded(self) -> bool:
        """Whether keys were looked up, padded to the longest row."""
        return bool(self._sights)

    def find_sight(self, table: Table, window: int) -> Sight:
        """Return the keys that the queries of one of the tables see; computed on the first call."""
        key = id(table), window
        if key not in self._sights:
            self._sights[key] = table.look(window)
        return self._sights[key]
