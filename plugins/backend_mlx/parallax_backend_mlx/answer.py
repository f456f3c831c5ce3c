"""From the logits of a step to the answers of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from parallax_backend_mlx.ranking import Inquiry, Ranking, rank_tokens
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_core.api import Answer, Draft, Draw, Drawn, Score, Scored

Asked = Draw | Score
"""The outputs this backend can give."""
UNRANKED = Ranking((), ())


def draw_tokens(sampler: Sampler, logits: mx.array, outputs: Sequence[Asked], drafts: Sequence[Draft]) -> mx.array:
    """Return the token ids drawn, one for each draft, not evaluated yet.

    Args:
        sampler: of the vocabulary.
        logits: shape [outputs, vocab_size].
        outputs: what is asked at each row of ``logits``.
        drafts: those of the draws among the outputs, in order; `Draw.count` each.
    """
    counts = [output.count if isinstance(output, Draw) else 0 for output in outputs]
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    chosen = logits if places == list(range(len(outputs))) else logits[mx.array(places)]
    return sampler.sample(chosen, drafts)


def make_answers(logits: mx.array, outputs: Sequence[Asked], drawn: Sequence[int]) -> tuple[Answer, ...]:
    """Return the answer to each of ``outputs``, given the tokens drawn; computes log-probabilities if asked for."""
    draws = iter(drawn)
    tokens = [tuple(islice(draws, output.count)) if isinstance(output, Draw) else (output.token,) for output in outputs]
    inquiries = [
        Inquiry(place, tokens[place], output.top)
        for place, output in enumerate(outputs)
        if isinstance(output, Score) or output.top >= 0
    ]
    rankings = dict(zip((inquiry.row for inquiry in inquiries), rank_tokens(logits, inquiries), strict=True))
    return tuple(
        _make_answer(output, tokens[place], rankings.get(place, UNRANKED)) for place, output in enumerate(outputs)
    )


def _make_answer(output: Asked, tokens: tuple[int, ...], ranking: Ranking) -> Answer:
    if isinstance(output, Draw):
        return Drawn(tokens, ranking.logprobs, ranking.top)
    return Scored(ranking.logprobs[0], ranking.top)
