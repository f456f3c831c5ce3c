"""From the logits of a step to the answers of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from parallax_backend_mlx.ranking import Inquiry, Ranking, rank_tokens
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_core.api import Answer, Draft, Draw, Drawn, Hidden, Output, Scored, State

UNRANKED = Ranking((), ())


def draw_tokens(sampler: Sampler, logits: mx.array, outputs: Sequence[Output], drafts: Sequence[Draft]) -> list[int]:
    """Return the token ids drawn, one for each draft.

    Args:
        sampler: of the vocabulary.
        logits: shape [outputs, vocab_size].
        outputs: what is asked at each row of ``logits``.
        drafts: those of the draws among the outputs, in order; `Draw.count` each.
    """
    if not drafts:
        return []
    counts = [output.count if isinstance(output, Draw) else 0 for output in outputs]
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    chosen = logits if places == list(range(len(outputs))) else logits[mx.array(places)]
    tokens: Any = sampler.sample(chosen, drafts).tolist()
    return list(tokens)


def make_answers(logits: mx.array, outputs: Sequence[Output], drawn: Sequence[int]) -> tuple[Answer, ...]:
    """Return the answer to each of ``outputs``, given the tokens drawn; computes log-probabilities if asked for.

    The hidden states that are asked for are the tensors of the result, in the order of their outputs.
    """
    draws = iter(drawn)
    tokens = [_list_tokens(output, draws) for output in outputs]
    inquiries = [
        Inquiry(place, tokens[place], output.top)
        for place, output in enumerate(outputs)
        if not isinstance(output, Hidden) and not (isinstance(output, Draw) and output.top < 0)
    ]
    rankings = dict(zip((inquiry.row for inquiry in inquiries), rank_tokens(logits, inquiries), strict=True))
    numbers = iter(range(len(outputs)))
    return tuple(
        State(next(numbers))
        if isinstance(output, Hidden)
        else _make_answer(output, tokens[place], rankings.get(place, UNRANKED))
        for place, output in enumerate(outputs)
    )


def _list_tokens(output: Output, draws: Iterator[int]) -> tuple[int, ...]:
    """Return the tokens an output is about: those drawn, or the one to be scored."""
    match output:
        case Draw(_, count):
            return tuple(islice(draws, count))
        case Hidden():
            return ()
    return (output.token,)


def _make_answer(output: Output, tokens: tuple[int, ...], ranking: Ranking) -> Answer:
    if isinstance(output, Draw):
        return Drawn(tokens, ranking.logprobs, ranking.top)
    return Scored(ranking.logprobs[0], ranking.top)
