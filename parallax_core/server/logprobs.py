"""Writes log-probabilities as JSON, in the two forms of OpenAI's API.

It writes them token by token: encoding those of a whole answer at its end would block the event loop for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.engine.detokenizer import Detokenizer
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.models.vocabulary import Vocabulary
from parallax_core.server.json_pieces import to_json, write_list

LOWEST = -9999.0
"""The value written for minus infinity, which JSON cannot express."""
MOST_KEPT = 2**15
"""The number of tokens whose JSON is cached; few tokens are frequent."""
MOST_AT_ONCE = 128
"""The number of tokens after which other tasks may run."""

NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
"""The lists of a completion's ``logprobs``."""


class TokenWriter:
    """Writes tokens and their log-probabilities; it caches the constant parts of each token's JSON."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.write_name = lru_cache(MOST_KEPT)(self._write_name)
        self._write_frame = lru_cache(MOST_KEPT)(self._make_frame)

    def write_entry(self, entry: TokenLogprob) -> bytes:
        """Return an entry of a chat's ``logprobs``."""
        pairs = ((entry.token, entry.logprob), *entry.top)
        numbers = write_numbers([logprob for _, logprob in pairs])
        chosen, *top = [
            before + number + behind
            for (before, behind), number in zip([self._write_frame(token) for token, _ in pairs], numbers, strict=True)
        ]
        ranked = b"},".join(top) + b"}" if top else b""
        return chosen + b',"top_logprobs":[' + ranked + b"]}"

    def write_top(self, entry: TokenLogprob) -> bytes:
        """Return an entry of a completion's ``top_logprobs``: the best tokens, and the chosen one."""
        ranked = {self.write_name(token): logprob for token, logprob in (*entry.top, (entry.token, entry.logprob))}
        numbers = write_numbers(list(ranked.values()))
        return b"{" + b",".join([name + b":" + number for name, number in zip(ranked, numbers, strict=True)]) + b"}"

    def _make_frame(self, token: int) -> tuple[bytes, bytes]:
        data = to_json(list(self._vocabulary.find_bytes(token)))
        return b'{"token":' + self.write_name(token) + b',"logprob":', b',"bytes":' + data

    def _write_name(self, token: int) -> bytes:
        return to_json(self._vocabulary.show(token))


def write_numbers(logprobs: list[float]) -> list[bytes]:
    """Return each number as JSON; ``max`` replaces minus infinity and NaN, which JSON cannot express, by `LOWEST`."""
    return to_json([max(LOWEST, logprob) for logprob in logprobs])[1:-1].split(b",")


def write_chat_logprobs(entries: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the ``logprobs`` of a chat's choice."""
    yield b'{"content":'
    yield from write_list(entries)
    yield b',"refusal":null}'


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
                top = self.writer.write_top(entry) if self.num_top else b"null"
                self._add(found, entry.token, number, top)
        return found

    def _add(self, found: Columns, token: int, logprob: bytes, top: bytes) -> None:
        row = (self.writer.write_name(token), logprob, top, str(self._offset).encode())
        for column, value in zip(found.lists, row, strict=True):
            column.append(value)
        self._offset += len(self._detokenizer.feed(token))
