"""Collects the log-probabilities of a prompt's tokens while the stages compute it."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.contracts.stage import Score, Scored


class PromptScore:
    """The log-probabilities of a prompt's tokens after the first, each requested once, even if steps are repeated.

    Steps are absorbed in order, so the scores arrive in the order of the requests.
    """

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        self._prompt = prompt
        self._top = top
        self._found: list[TokenLogprob] = []
        self._num_asked = 0

    @property
    def num_asked(self) -> int:
        """The number of leading tokens that need not be computed for it: the score after each was requested."""
        return self._num_asked

    @property
    def is_asked(self) -> bool:
        """Whether all scores were requested."""
        return self._num_asked >= len(self._prompt) - 1

    def ask(self, start: int, stop: int) -> tuple[Score, ...]:
        """Return the scores to request in a row of the tokens from ``start`` to ``stop``; count them as requested."""
        last = min(stop, len(self._prompt) - 1)
        positions = range(max(start, self._num_asked), last)
        self._num_asked = max(self._num_asked, last)
        return tuple(Score(at - start, self._prompt[at + 1], self._top) for at in positions)

    def take(self, scored: Scored) -> None:
        """Add the next score."""
        token = self._prompt[len(self._found) + 1]
        self._found.append(TokenLogprob(token, scored.logprob, scored.top))

    def forget_steps(self) -> None:
        """Discard the outstanding scores: they will be requested again."""
        self._num_asked = len(self._found)

    def read(self) -> tuple[TokenLogprob, ...]:
        """Return the log-probabilities received so far."""
        return tuple(self._found)
