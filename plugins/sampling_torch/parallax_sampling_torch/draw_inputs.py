"""Makes the inputs of draws, without copying the tokens before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parallax_core.api import Draw, Entry, Row, Sampling


class DrawInput(NamedTuple):
    """One draw."""

    sampling: Sampling
    choice: int
    """The index of the choice that it draws for; see `parallax_core.api.draw_key`."""
    tokens: Sequence[int]
    """The tokens of the sequence from the first, including some after the draw if there are any."""
    position: int
    """The number of tokens before the draw, which is the position of the drawn token."""
    prompt_length: int

    @property
    def num_output(self) -> int:
        """The number of output tokens before the draw."""
        return max(0, self.position - self.prompt_length)

    @property
    def history(self) -> Sequence[int]:
        """All tokens before the draw."""
        return self.tokens[: self.position]

    @property
    def output(self) -> Sequence[int]:
        """The output tokens before the draw."""
        return self.tokens[self.prompt_length : self.position]


def list_draw_inputs(row: Row, entry: Entry) -> Iterator[DrawInput]:
    """Yield the inputs of each draw of a row, whose tokens are in ``entry`` already."""
    spec = entry.spec
    for output in row.outputs:
        if isinstance(output, Draw):
            position = row.start + output.offset + 1
            for choice in range(entry.choice, entry.choice + output.count):
                yield DrawInput(spec.sampling, choice, entry.tokens, position, spec.prompt_length)
