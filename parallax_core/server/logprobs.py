"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.engine.detokenizer import Detokenizer
from parallax_core.node.text import ModelText
from parallax_core.node.vocabulary import Vocabulary

LOWEST = -9999.0
"""What minus infinity is written as: JSON has no word for it."""

Shape = dict[str, object]


def chat_logprobs(vocabulary: Vocabulary, entries: Iterable[TokenLogprob]) -> Shape:
    """Return the ``logprobs`` of a choice of a chat."""
    content = [
        _describe(vocabulary, entry.token, entry.logprob)
        | {"top_logprobs": [_describe(vocabulary, token, logprob) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _describe(vocabulary: Vocabulary, token: int, logprob: float) -> Shape:
    data = vocabulary.find_bytes(token)
    return {"token": vocabulary.show(token), "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


@dataclass(slots=True)
class CompletionLogprobs:
    """Makes the ``logprobs`` of a choice of a completion, piece by piece; offsets count characters of its text."""

    text: ModelText
    num_top: int
    _offset: int = 0
    _detokenizer: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.text.decode)

    def describe(self, entries: Sequence[TokenLogprob], first: int | None = None) -> Shape:
        """Return what is to be said of ``entries``, the tokens that come next.

        Args:
            entries: tokens with their log-probabilities.
            first: a token before them that has none, since nothing comes before it.
        """
        shape: dict[str, list[object]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs")}
        offsets: list[object] = []
        if first is not None:
            shape["tokens"].append(self.text.vocabulary.show(first))
            shape["token_logprobs"].append(None)
            shape["top_logprobs"].append(None)
            offsets.append(self._advance(first))
        for entry in entries:
            shape["tokens"].append(self.text.vocabulary.show(entry.token))
            shape["token_logprobs"].append(_finite(entry.logprob))
            shape["top_logprobs"].append(self._rank(entry))
            offsets.append(self._advance(entry.token))
        return {**shape, "text_offset": offsets}

    def _rank(self, entry: TokenLogprob) -> dict[str, float] | None:
        """OpenAI's API gives the best tokens and the chosen one."""
        if not self.num_top:
            return None
        ranked = [*entry.top, (entry.token, entry.logprob)]
        return {self.text.vocabulary.show(token): _finite(logprob) for token, logprob in ranked}

    def _advance(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._detokenizer.feed(token))
        return offset
