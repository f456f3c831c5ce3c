"""What is known of a sequence when the toy draws its next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parallax_core.api import Draft, SequenceSpec, make_draft


@dataclass(slots=True)
class History:
    """One sequence: what holds for it, and its tokens so far."""

    spec: SequenceSpec
    choice: int = 0
    tokens: list[int] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], choice: int) -> Draft:
        """Return what is known when a token is drawn after ``tokens`` more, as the choice so much higher."""
        return make_draft(self.spec, [*self.tokens, *tokens], self.choice + choice)
