"""Answers the outputs of a batch from logits: draws, log-probabilities, hidden states."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from parallax_core.api import Answer, Draw, Entry, Hidden, Output, Sampling, SeqId, StageBatch, Tensor
from parallax_sampling_torch.adjust import is_adjusted
from parallax_sampling_torch.draw_inputs import list_draw_inputs
from parallax_sampling_torch.ranking import rank_tokens
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.tensors import send, write_tensor
from parallax_stage_tools.ranking import make_answers


def list_outputs(batch: StageBatch) -> list[Output]:
    """Return the outputs of a batch, in row order."""
    return [output for row in batch.rows for output in row.outputs]


@dataclass(frozen=True, slots=True)
class Picks:
    """The tokens whose hidden states the outputs of a step need, numbered over all rows."""

    places: torch.Tensor | None
    """The token of each output, int64 of shape [outputs]; None: every token has one output."""
    sums: tuple[tuple[int, slice], ...] = ()
    """Each output that sums hidden states, by its index, with the tokens to sum."""

    def take(self, states: torch.Tensor) -> torch.Tensor:
        """Return the state of each output's token, from ``states`` of all tokens, [tokens, width]."""
        return states if self.places is None else states[self.places]

    def add_up(self, taken: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return ``taken``, [outputs, width], with sums in float32 for the outputs that sum.

        Args:
            taken: the state of each output's token.
            states: the states of all tokens after the final norm, [tokens, width].
        """
        if not self.sums:
            return taken
        found = taken.to(torch.float32, copy=True)
        for index, tokens in self.sums:
            found[index] = states[tokens].float().sum(dim=0)
        return found

    @property
    def are_none(self) -> bool:
        """Whether there are no outputs."""
        return self.places is not None and not len(self.places)


def find_picks(batch: StageBatch, device: torch.device) -> Picks:
    """Return the tokens whose hidden states the outputs of a batch need."""
    places, sums, first = array("q"), list[tuple[int, slice]](), 0
    for row in batch.rows:
        for output in row.outputs:
            if isinstance(output, Hidden) and output.summed:
                stop = first + output.offset + 1
                sums.append((len(places), slice(stop - output.summed, stop)))
            places.append(first + output.offset)
        first += len(row.tokens)
    return Picks(None if places == array("q", range(first)) else send(places, device), tuple(sums))


def place_draws(outputs: Sequence[Output]) -> list[int]:
    """Return for each draw the index of its output in ``outputs``."""
    return [place for place, output in enumerate(outputs) if isinstance(output, Draw) for _ in range(output.count)]


def draw_tokens(
    sampler: Sampler,
    logits: torch.Tensor,
    batch: StageBatch,
    entries: Mapping[SeqId, Entry],
    best: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return the drawn token ids in the order of the outputs, int64; None if the batch has no draws.

    Args:
        sampler: draws over the vocabulary of the logits.
        logits: of each output, float32 of shape [outputs, vocab size].
        batch: the batch of the step.
        entries: the sequences of its rows, with the tokens of the batch.
        best: the token of the largest logit of each output, int64 of shape [outputs], if known.
    """
    outputs = list_outputs(batch)
    places = place_draws(outputs)
    if not places:
        return None
    samplings = {id(spec.sampling): spec.sampling for spec in [entries[row.seq].spec for row in batch.rows]}
    is_each = len(places) == len(outputs) == len(set(places))
    if best is not None and is_each and not any(map(_is_random, samplings.values())):
        return best
    draw_inputs = [draw_input for row in batch.rows for draw_input in list_draw_inputs(row, entries[row.seq])]
    if is_each:
        return sampler.sample(logits, draw_inputs, best)
    return sampler.sample(logits[places], draw_inputs, None if best is None else best[places])


def _is_random(sampling: Sampling) -> bool:
    """Return whether a draw may take another token than the one with the largest logit."""
    return bool(sampling.temperature) or is_adjusted(sampling)


def answer_outputs(outputs: Sequence[Output], logits: torch.Tensor, drawn: torch.Tensor | None) -> tuple[Answer, ...]:
    """Return the answers to the outputs of a step, whose tokens are ``drawn``; waits for the device."""
    tokens: list[int] = [] if drawn is None else drawn.tolist()
    return make_answers(outputs, tokens, partial(rank_tokens, logits))


def write_states(outputs: Sequence[Output], states: torch.Tensor | None) -> tuple[Tensor, ...]:
    """Return the states that `Hidden` outputs ask for, float32; ``states`` has one row for each output."""
    asked = [place for place, output in enumerate(outputs) if isinstance(output, Hidden)]
    if states is None or not asked:
        return ()
    return tuple(write_tensor(states[place].float()) for place in asked)
