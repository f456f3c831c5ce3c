"""The inputs of a draw, without a copy of the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallax_core.api import Draw, Entry, Row, Sampling


@dataclass(frozen=True, slots=True)
class DrawInput:
    """One draw."""

    sampling: Sampling
    choice: int
    """Whose draws it belongs to; see `parallax_core.api.draw_key`."""
    tokens: Sequence[int]
    """Those of the sequence, from its first on, and perhaps more than come before the draw."""
    position: int
    """The number of tokens before it, which is the position of the drawn token."""
    prompt_length: int

    @property
    def num_output(self) -> int:
        """The number of output tokens before it."""
        return max(0, self.position - self.prompt_length)

    @property
    def history(self) -> Sequence[int]:
        """All tokens before."""
        return self.tokens[: self.position]

    @property
    def output(self) -> Sequence[int]:
        """Those of them that are no part of the prompt."""
        return self.tokens[self.prompt_length : self.position]


def list_tickets(row: Row, entry: Entry) -> Iterator[DrawInput]:
    """Yield the inputs of each draw of a row, whose tokens the entry holds already."""
    spec = entry.spec
    for output in row.outputs:
        if isinstance(output, Draw):
            position = row.start + output.offset + 1
            for choice in range(entry.choice, entry.choice + output.count):
                yield DrawInput(spec.sampling, choice, entry.tokens, position, spec.prompt_length)
