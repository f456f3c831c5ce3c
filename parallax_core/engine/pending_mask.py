"""A mask that an answer needs before its next row, and the mask of a planned draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from parallax_core.base.ids import RequestId
from parallax_core.engine.answer_grammar import AnswerGrammar
from parallax_core.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class PendingMask:
    """The mask for the next token of an answer, which gets no row and no token before it is made."""

    sequence: Sequence
    grammar: AnswerGrammar
    num_tokens: int
    """The tokens of the answer that its grammar has yet to take."""
    is_quick: bool
    """Whether the masks of the request have been quick, so that this one will be too, as a rule."""

    @property
    def request_id(self) -> RequestId:
        """The request."""
        return self.sequence.request.id

    @property
    def client(self) -> bytes:
        """Who sent the request."""
        return self.sequence.request.client

    @property
    def is_wanted(self) -> bool:
        """Whether the answer still goes on."""
        return not self.sequence.is_over

    @property
    def may_be_slow(self) -> bool:
        """Whether it may take long: earlier ones have, or there are many tokens to follow."""
        budget = self.sequence.context.masks
        return not budget.is_quick if budget.is_known else self.num_tokens > 1

    def make(self) -> bytes:
        """Return the mask; on any thread.

        Raises:
            BackendFailed: as `Matcher` does; the request cannot go on.
        """
        sequence = self.sequence
        request, matcher = sequence.request, self.grammar.follow(sequence.output)
        return matcher.find_mask(request.stop_ids, may_end=sequence.num_output >= request.sampling.min_tokens)

    def note(self, seconds: float) -> str:
        """Count the seconds of a processor that making it took; see `MaskBudget.note`."""
        return self.sequence.context.masks.note(seconds, self.num_tokens)


class StepMask(NamedTuple):
    """The mask of a draw in a planned step."""

    row: int
    """The index of the row in the step."""
    output: int
    """The index of the draw in the outputs of the row."""
    bits: bytes
    """One bit for each token; see `parallax_core.wire.messages.Mask`."""
