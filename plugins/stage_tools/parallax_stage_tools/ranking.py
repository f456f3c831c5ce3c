"""Builds the answers of a stage from tokens and log-probabilities that a backend computed in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from parallax_core.api import Answer, Draw, Drawn, Hidden, Output, Scored, State


@dataclass(frozen=True, slots=True)
class Ranking:
    """The log-probabilities reported for one position."""

    logprobs: tuple[float, ...]
    """The log-probabilities of the requested tokens."""
    top: tuple[tuple[int, float], ...]
    """The most probable tokens and their log-probabilities, best first; ties by the lowest id."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The log-probabilities requested for one position."""

    row: int
    """The row of the logits."""
    tokens: Sequence[int]
    """The tokens whose log-probabilities are requested."""
    top: int
    """The number of best tokens to report."""


UNRANKED = Ranking((), ())


def make_answers(
    outputs: Sequence[Output], drawn: Sequence[int], rank: Callable[[Sequence[Inquiry]], Sequence[Ranking]]
) -> tuple[Answer, ...]:
    """Return the answer to each of ``outputs``.

    The requested hidden states are the tensors of the result, in the order of their outputs.

    Args:
        outputs: the requested outputs, one for each row of the logits.
        drawn: the drawn tokens, `Draw.count` for each draw, in the order of the draws.
        rank: looks up log-probabilities; called at most once, with the requested positions only.
    """
    if all(type(output) is Draw and output.count == 1 and output.top < 0 for output in outputs):  # as in most steps
        return tuple([Drawn((token,)) for token in drawn])
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
    """Return the tokens of an output: those drawn, or the one to score."""
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
