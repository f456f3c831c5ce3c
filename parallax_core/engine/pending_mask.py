"""Makes the masks of a step's draws: each from the grammar of an answer and its tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from parallax_core.base.ids import RequestId
from parallax_core.contracts.grammar import CompiledGrammar, Matcher


@dataclass(slots=True)
class AnswerGrammar:
    """The place of one answer in its grammar, a function of the answer's tokens. One thread at a time may use it."""

    compiled: CompiledGrammar
    _matcher: Matcher | None = None
    _num_taken: int = 0

    def follow(self, output: Sequence[int], length: int) -> Matcher:
        """Return the matcher after the first ``length`` tokens of ``output``; it takes those it does not have yet."""
        if self._matcher is None:
            self._matcher = self.compiled.start()
        new = output[self._num_taken : length]
        self._num_taken += len(new)
        self._matcher.advance(new)
        return self._matcher


@dataclass(frozen=True, slots=True)
class PendingMask:
    """The mask of a draw of a planned step, to be made on any thread, but after those of earlier steps."""

    row: int
    """The index of the row in the step."""
    output: int
    """The index of the draw in the outputs of the row."""
    request_id: RequestId
    grammar: AnswerGrammar
    tokens: Sequence[int]
    """The tokens of the answer; more may be appended meanwhile."""
    num_tokens: int
    """The number of tokens before the draw."""
    stop_ids: Collection[int]
    may_end: bool
    """Whether the answer is long enough to end; see `Matcher.find_mask`."""

    def make(self) -> bytes:
        """Return the mask.

        Raises:
            BackendFailed: as `Matcher` does; the request cannot go on.
        """
        matcher = self.grammar.follow(self.tokens, self.num_tokens)
        return matcher.find_mask(self.stop_ids, may_end=self.may_end)
