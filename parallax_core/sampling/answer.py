"""Turns logits into the answers of a stage with the reference sampler: slow and exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallax_core.contracts.stage import Draw, Drawn, Score, Scored, SequenceSpec
from parallax_core.sampling.reference import Draft, best, draw, logprobs


def make_draft(spec: SequenceSpec, tokens: Sequence[int], choice: int = 0) -> Draft:
    """Return the input of a draw after ``tokens``, which are all tokens of the sequence so far."""
    split = spec.prompt_length
    return Draft(spec.sampling, tokens[:split], tokens[split:], choice)


def answer_output(output: Draw | Score, logits: Sequence[float], draft: Draft) -> Drawn | Scored:
    """Return the answer to an output.

    Args:
        output: the requested output.
        logits: the raw logits after the token at the output's offset, one per token id.
        draft: the input of the draw at that position, with the choice of the sequence.
    """
    if isinstance(output, Score):
        return answer_score(output, logits)
    return answer_draw(output, logits, [replace(draft, choice=draft.choice + j) for j in range(output.count)])


def answer_draw(output: Draw, logits: Sequence[float], drafts: Sequence[Draft]) -> Drawn:
    """Draw once for each of ``drafts``."""
    drawn = tuple(draw(logits, draft) for draft in drafts)
    if output.top < 0:
        return Drawn(drawn)
    found = logprobs(logits)
    return Drawn(drawn, tuple(found[token] for token in drawn), best(found, output.top))


def answer_score(output: Score, logits: Sequence[float]) -> Scored:
    """Return the requested log-probability, and the best ones."""
    found = logprobs(logits)
    return Scored(found[output.token], best(found, output.top))
