"""The interface of runners, and the results of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from parallax_backend_mlx.runtime import mx
from parallax_core.api import Copy, Edit, Hidden, Row

Copies = Sequence[Sequence[Copy]]
"""The copies to make before any other write, for each pool."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outputs of a run, evaluated."""

    logits: mx.array | None = None
    """The logits of each output of each row, in row order, shape [outputs, vocab_size]; None without outputs."""
    states: mx.array | None = None
    """The hidden states after the final norm of these outputs, or sums, shape [outputs, width]; None if no row asks for
    one."""
    hidden: mx.array | None = None
    """The hidden states of a network without the last layer: shape [tokens of all rows in order, width]."""


class Runner(Protocol):
    """Keeps the sequences of a stage, and runs rows of them. Belongs to the thread that made it."""

    def edit(self, edit: Edit, copies: Copies) -> None:
        """Apply an edit that the account has made, and the copies for it."""

    def run(self, rows: Sequence[Row], hidden: mx.array | None, copies: Copies) -> RunResult:
        """Run ``rows``, whose pages the account has allocated, and evaluate the caches.

        Args:
            rows: rows of different sequences.
            hidden: the output of the previous stage, shape [tokens of all rows in order, width].
            copies: the copies to make before any other write.
        """

    def undo(self) -> None:
        """Undo a `run` that raised; if this raises too, the sequences are lost."""


def find_wanted(row: Row, *, is_last: bool) -> Sequence[int]:
    """Return the offsets of the tokens of ``row`` with results: those with outputs, or all if another stage follows."""
    return [output.offset for output in row.outputs] if is_last else range(len(row.tokens))


def find_sums(row: Row, first: int) -> Iterator[tuple[int, slice]]:
    """Yield the index of each output of ``row`` that sums hidden states, with the tokens to sum.

    Args:
        row: the row.
        first: the index of its first token.
    """
    for index, output in enumerate(row.outputs):
        if isinstance(output, Hidden) and output.summed:
            stop = first + output.offset + 1
            yield index, slice(stop - output.summed, stop)


def wants_states(rows: Sequence[Row]) -> bool:
    """Whether a row asks for a hidden state."""
    return any(isinstance(output, Hidden) for row in rows for output in row.outputs)
