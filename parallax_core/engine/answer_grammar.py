"""The place of an answer in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.grammar import CompiledGrammar, Matcher


@dataclass(slots=True)
class AnswerGrammar:
    """The place of one answer in its grammar, a function of the answer's tokens. One thread at a time may use it."""

    compiled: CompiledGrammar
    num_taken: int = 0
    """The tokens that the matcher has."""
    _matcher: Matcher | None = None

    def follow(self, output: Sequence[int]) -> Matcher:
        """Return the matcher after ``output``; it takes the tokens that it does not have yet.

        Raises:
            BackendFailed: as `Matcher.advance` does.
        """
        if self._matcher is None:
            self._matcher = self.compiled.start()
        new = output[self.num_taken :]
        self.num_taken += len(new)
        self._matcher.advance(new)
        return self._matcher
