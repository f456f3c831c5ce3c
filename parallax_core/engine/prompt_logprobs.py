"""What the tokens of a prompt were likely to be: asked of the stages while they compute it."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.contracts.stage import Score, Scored


class PromptScore:
    """The log-probabilities of a prompt's tokens after the first, each asked for once, whatever is computed again.

    Steps are absorbed in their order, so what comes back is what was asked for, in that order.
    """

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        self._prompt = prompt
        self._top = top
        self._found: list[TokenLogprob] = []
        self._num_asked = 0

    @property
    def num_asked(self) -> int:
        """How many tokens at the beginning need not be computed for it: what follows each of them was asked for."""
        return self._num_asked

    @property
    def is_asked(self) -> bool:
        """Whether all of it was asked for."""
        return self._num_asked >= len(self._prompt) - 1

    def ask(self, start: int, stop: int) -> tuple[Score, ...]:
        """Return what a row of the tokens from ``start`` to ``stop`` is to give, and count that as asked for."""
        last = min(stop, len(self._prompt) - 1)
        places = range(max(start, self._num_asked), last)
        self._num_asked = max(self._num_asked, last)
        return tuple(Score(place - start, self._prompt[place + 1], self._top) for place in places)

    def take(self, scored: Scored) -> None:
        """Take the next answer."""
        token = self._prompt[len(self._found) + 1]
        self._found.append(TokenLogprob(token, scored.logprob, scored.top))

    def forget_steps(self) -> None:
        """Note that what was asked for and has not come will not."""
        self._num_asked = len(self._found)

    def read(self) -> tuple[TokenLogprob, ...]:
        """Return what was found."""
        return tuple(self._found)
