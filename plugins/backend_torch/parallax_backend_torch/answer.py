"""From the logits of a step to the answers of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from parallax_backend_torch.network import Found
from parallax_backend_torch.ranking import Inquiry, Ranking, rank_tokens
from parallax_backend_torch.tensors import write_tensor
from parallax_core.api import Answer, Draw, Drawn, Hidden, Output, Scored, StageResult, State, Tensor

UNRANKED = Ranking((), ())


@dataclass(frozen=True, slots=True)
class Pending:
    """The outcome of a step, possibly still being computed on another device."""

    found: Found
    outputs: Sequence[Output]
    drawn: torch.Tensor | None
    """The token ids drawn, in the order of the outputs."""
    free: tuple[int, ...]
    """Free pages of each pool after the step."""

    def wait(self) -> StageResult:
        """Return the result."""
        if self.found.hidden is not None:
            return StageResult(tensors=(write_tensor(self.found.hidden),), free=self.free)
        if self.found.logits is None:
            return StageResult(free=self.free)
        tokens: list[int] = [] if self.drawn is None else self.drawn.tolist()
        return StageResult(make_answers(self.found.logits, self.outputs, tokens), self._write_states(), self.free)

    def _write_states(self) -> tuple[Tensor, ...]:
        states = self.found.states
        asked = [place for place, output in enumerate(self.outputs) if isinstance(output, Hidden)]
        if states is None or not asked:
            return ()
        return tuple(write_tensor(states[place].float()) for place in asked)


def place_draws(outputs: Sequence[Output]) -> list[int]:
    """Return for each draw at which of ``outputs`` it is."""
    return [place for place, output in enumerate(outputs) if isinstance(output, Draw) for _ in range(output.count)]


def make_answers(logits: torch.Tensor, outputs: Sequence[Output], drawn: Sequence[int]) -> tuple[Answer, ...]:
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
