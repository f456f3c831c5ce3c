"""The state of a sequence of the toy model, and the input of its draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parallax_core.api import Draft, SequenceSpec, make_draft


@dataclass(slots=True)
class History:
    """One sequence: its spec and its tokens so far."""

    spec: SequenceSpec
    choice: int = 0
    tokens: list[int] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], choice: int) -> Draft:
        """Return the input of a draw after further ``tokens``, for the choice increased by the given number."""
        return make_draft(self.spec, [*self.tokens, *tokens], self.choice + choice)
