"""Makes the log-probabilities of completions, token by token.

Encoding those of a whole answer at its end would block the event loop for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from parallax_core.api import TokenLogprob
from parallax_core.api.bodies import ModelTokenizer, to_json
from parallax_core.api.dialect import Detokenizer, TokenWriter, write_list, write_numbers

MOST_AT_ONCE = 128
"""The number of tokens after which other tasks may run."""

NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
"""The lists of a completion's ``logprobs``."""


def write_top(writer: TokenWriter, entry: TokenLogprob) -> bytes:
    """Return an entry of ``top_logprobs``: the best tokens, and the chosen one."""
    ranked = {writer.write_name(token): logprob for token, logprob in (*entry.top, (entry.token, entry.logprob))}
    numbers = write_numbers(list(ranked.values()))
    return b"{" + b",".join([name + b":" + number for name, number in zip(ranked, numbers, strict=True)]) + b"}"


@dataclass(slots=True)
class Columns:
    """The ``logprobs`` of a completion's choice, or a part of them: lists of JSON, all of the same length."""

    lists: tuple[list[bytes], ...] = field(default_factory=lambda: tuple([] for _ in NAMES))

    def __len__(self) -> int:
        return len(self.lists[0])

    def extend(self, more: Columns) -> None:
        """Append the columns of the next tokens."""
        for column, values in zip(self.lists, more.lists, strict=True):
            column.extend(values)

    def write(self) -> Iterator[bytes]:
        """Yield the JSON object."""
        separator = b"{"
        for name, values in zip(NAMES, self.lists, strict=True):
            yield separator + to_json(name) + b":"
            yield from write_list(values)
            separator = b","
        yield b"}"


@dataclass(slots=True)
class CompletionLogprobs:
    """Makes the ``logprobs`` of a completion's choice, piece by piece; offsets count characters of its text."""

    text: ModelTokenizer
    writer: TokenWriter
    num_top: int
    _offset: int = 0
    _detokenizer: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.text.decode)

    async def describe(self, entries: Sequence[TokenLogprob], first: int | None = None) -> Columns:
        """Return the columns of the next tokens; if there are many, other tasks run in between.

        Args:
            entries: the tokens with their log-probabilities.
            first: the first token of an echoed prompt, before ``entries``; it has no log-probability.
        """
        found = Columns()
        if first is not None:
            self._add(found, first, b"null", b"null")
        for start in range(0, len(entries), MOST_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            some = entries[start : start + MOST_AT_ONCE]
            for entry, number in zip(some, write_numbers([entry.logprob for entry in some]), strict=True):
                top = write_top(self.writer, entry) if self.num_top else b"null"
                self._add(found, entry.token, number, top)
        return found

    def _add(self, found: Columns, token: int, logprob: bytes, top: bytes) -> None:
        row = (self.writer.write_name(token), logprob, top, str(self._offset).encode())
        for column, value in zip(found.lists, row, strict=True):
            column.append(value)
        self._offset += len(self._detokenizer.feed(token))
