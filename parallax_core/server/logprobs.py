"""Writes tokens and their log-probabilities as JSON.

It writes them token by token: encoding those of a whole answer at its end would block the event loop for seconds.
"""

from __future__ import annotations

from functools import lru_cache

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.models.vocabulary import Vocabulary
from parallax_core.server.json_pieces import to_json

LOWEST = -9999.0
"""The value written for minus infinity, which JSON cannot express."""
MOST_KEPT = 2**15
"""The number of tokens whose JSON is cached; few tokens are frequent."""


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

    def _make_frame(self, token: int) -> tuple[bytes, bytes]:
        data = to_json(list(self._vocabulary.find_bytes(token)))
        return b'{"token":' + self.write_name(token) + b',"logprob":', b',"bytes":' + data

    def _write_name(self, token: int) -> bytes:
        return to_json(self._vocabulary.show(token))


def write_numbers(logprobs: list[float]) -> list[bytes]:
    """Return each number as JSON; ``max`` replaces minus infinity and NaN, which JSON cannot express, by `LOWEST`."""
    return to_json([max(LOWEST, logprob) for logprob in logprobs])[1:-1].split(b",")
