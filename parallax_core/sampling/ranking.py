"""From tokens drawn in batched arrays to the answers of a stage: all but the arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from parallax_core.contracts.stage import Answer, Draw, Drawn, Hidden, Output, Scored, State


@dataclass(frozen=True, slots=True)
class Ranking:
    """What is reported of one position."""

    logprobs: tuple[float, ...]
    """Of the tokens asked for."""
    top: tuple[tuple[int, float], ...]
    """The most probable tokens and their log-probabilities, best first, of equals the lowest id first."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What is asked of one position."""

    row: int
    """Of the logits."""
    tokens: Sequence[int]
    """The tokens whose log-probabilities are wanted."""
    top: int
    """How many best ones are wanted."""


UNRANKED = Ranking((), ())


def make_answers(
    outputs: Sequence[Output], drawn: Sequence[int], rank: Callable[[Sequence[Inquiry]], Sequence[Ranking]]
) -> tuple[Answer, ...]:
    """Return the answer to each of ``outputs``.

    The hidden states that are asked for are the tensors of the result, in the order of their outputs.

    Args:
        outputs: what is asked for, one for each row of the logits.
        drawn: the tokens drawn, in the order of the draws, `Draw.count` each.
        rank: looks up log-probabilities; asked once, and only for what is wanted.
    """
    draws = iter(drawn)
    tokens = [_list_tokens(output, draws) for output in outputs]
    inquiries = [
        Inquiry(place, tokens[place], output.top)
        for place, output in enumerate(outputs)
        if not isinstance(output, Hidden) and not (isinstance(output, Draw) and output.top < 0)
    ]
    ranked = rank(inquiries) if inquiries else ()
    rankings = dict(zip((inquiry.row for inquiry in inquiries), ranked, strict=True))
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
