"""Makes the inputs of a row's draws, without copying the tokens before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from parallax_core.api import Draft, Draw, Entry, Row


@dataclass(frozen=True, slots=True)
class TokenSlice(Sequence[int]):
    """Consecutive tokens of a sequence, copied only when they are read: most draws need only their number."""

    tokens: Sequence[int]
    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self.tokens[self.start : self.stop][index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens[self.start : self.stop])


def list_drafts(row: Row, entry: Entry) -> Iterator[Draft]:
    """Yield the draft of each draw of a row, whose tokens are in ``entry`` already."""
    for output in row.outputs:
        if isinstance(output, Draw):
            position = row.start + output.offset + 1
            split = min(entry.spec.prompt_length, position)
            prompt, written = TokenSlice(entry.tokens, 0, split), TokenSlice(entry.tokens, split, position)
            for choice in range(entry.choice, entry.choice + output.count):
                yield Draft(entry.spec.sampling, prompt, written, choice)
