"""Where tokens lie on other devices than a CPU: rectangles of rows of one length, made once for all layers.

Every shape follows from the shapes of the tables, and nothing is read back, so the same work can be recorded once and
done again with other numbers in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.step import Places


@dataclass(frozen=True, eq=False, slots=True)
class Sight:
    """What the queries of a table see."""

    slots: torch.Tensor
    """int64 of shape [rows, seen]. Beyond a row's end its last slot stands, as what was never written may be NaN."""
    mask: torch.Tensor
    """bool of shape [rows, tokens, seen]: which query sees which; each sees itself at least."""


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """The pages of rows that have as many tokens each; everything int64 on the device."""

    starts: torch.Tensor
    """The position of a row's first query, of shape [rows]."""
    bases: torch.Tensor
    """The position of the first slot in its first page, of shape [rows]."""
    pages: torch.Tensor
    """Of shape [rows, pages]; what is beyond a row's last one is never used."""
    tokens: int
    """Of each row."""
    page_size: int

    def find_queries(self) -> torch.Tensor:
        """Return the positions of the queries, int64 of shape [rows, tokens]."""
        return self.starts[:, None] + torch.arange(self.tokens, device=self.starts.device)

    def find_slots(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of some positions of each row, int64 of shape [rows, any]."""
        at = positions - self.bases[:, None]
        return self.pages.gather(1, at // self.page_size) * self.page_size + at % self.page_size

    def look(self, window: int) -> Sight:
        """Return what is seen through a window; 0: everything before."""
        queries, room = self.find_queries(), self.pages.shape[1] * self.page_size
        seen = self.bases[:, None] + torch.arange(room, device=self.bases.device)
        distance = queries[:, :, None] - seen[:, None, :]
        mask = distance >= 0
        mask = mask & (distance < window) if window else mask
        return Sight(self.find_slots(torch.minimum(seen, queries[:, -1:])), mask)


class Grid(Places):
    """See `Places`.

    Args:
        tables: in the order of the tokens.
        window: of the pool.
    """

    def __init__(self, tables: Sequence[Table], window: int) -> None:
        self._tables, self.window = tables, window
        self.slots = torch.cat([table.find_slots(table.find_queries()).flatten() for table in tables])
        self._sights: dict[int, list[Sight]] = {}

    def find_sights(self, window: int) -> list[Sight]:
        """Return what the queries of each table see, made when it is first asked for."""
        if window not in self._sights:
            self._sights[window] = [table.look(window) for table in self._tables]
        return self._sights[window]
