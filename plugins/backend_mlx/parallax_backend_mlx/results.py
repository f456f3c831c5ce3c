"""The outputs of a batch, and the interface of runners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parallax_backend_mlx.runtime import mx
from parallax_core.api import Copy, Edit, Hidden, Row

Copies = Sequence[Sequence[Copy]]
"""For each pool, the copies to make before any other write."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outputs of a run, evaluated."""

    logits: mx.array | None = None
    """At each output of each row, in row order, shape [outputs, vocab_size]; None without outputs."""
    states: mx.array | None = None
    """At the same places, hidden states after the final norm, shape [outputs, width]; None if no row asks for one."""
    hidden: mx.array | None = None
    """From a network without the last layer: shape [tokens of all rows in order, width]."""


class Runner(Protocol):
    """Keeps the sequences of a stage, and runs rows of them. Belongs to the thread that made it."""

    def edit(self, edit: Edit, copies: Copies) -> None:
        """Follow an edit that the account has made, with the copies it wants."""

    def run(self, rows: Sequence[Row], hidden: mx.array | None, copies: Copies) -> Found:
        """Run ``rows``, for which the account has made room, and evaluate the caches.

        Args:
            rows: of different sequences.
            hidden: what the stage before gave, shape [tokens of all rows in order, width].
            copies: to make before anything is written.
        """

    def undo(self) -> None:
        """Undo a `run` that raised; if this raises too, the sequences are lost."""


def find_wanted(row: Row, *, is_last: bool) -> Sequence[int]:
    """Return the offsets in ``row`` of which something is given on: those of outputs, or all to the next stage."""
    return [output.offset for output in row.outputs] if is_last else range(len(row.tokens))


def wants_states(rows: Sequence[Row]) -> bool:
    """Whether a row asks for a hidden state."""
    return any(isinstance(output, Hidden) for row in rows for output in row.outputs)
