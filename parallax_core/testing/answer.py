"""From logits to answers, by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parallax_core.api import (
    Draft,
    Draw,
    Drawn,
    Score,
    Scored,
    SequenceSpec,
    StageResult,
    best,
    draw,
    logprobs,
)


@dataclass(slots=True)
class History:
    """One sequence: what holds for it, and its tokens so far."""

    spec: SequenceSpec
    choice: int = 0
    tokens: list[int] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], choice: int) -> Draft:
        """Return what is known when a token is drawn after ``tokens`` more, as the choice so much higher."""
        known = [*self.tokens, *tokens]
        split = self.spec.prompt_length
        return Draft(self.spec.sampling, known[:split], known[split:], self.choice + choice)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step that is over."""

    result: StageResult

    def wait(self) -> StageResult:
        """Return the result at once."""
        return self.result


def answer_draw(output: Draw, logits: Sequence[float], drafts: Sequence[Draft]) -> Drawn:
    """Draw once for each of ``drafts``."""
    drawn = tuple(draw(logits, draft) for draft in drafts)
    if output.top < 0:
        return Drawn(drawn)
    found = logprobs(logits)
    return Drawn(drawn, tuple(found[token] for token in drawn), best(found, output.top))


def answer_score(output: Score, logits: Sequence[float]) -> Scored:
    """Return the log-probability that is asked for, and the best ones."""
    found = logprobs(logits)
    return Scored(found[output.token], best(found, output.top))
