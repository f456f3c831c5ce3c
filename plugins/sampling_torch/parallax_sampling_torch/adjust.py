"""Applies penalties, bias and bans to many rows at once: `parallax_core.api.adjust`.

No state is kept between steps: one scatter counts the tokens of a row's history, which costs little compared to the
step. Rows without such sampling cost nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

import torch

from parallax_core.api import Sampling
from parallax_sampling_torch.draw_inputs import DrawInput
from parallax_sampling_torch.tensors import upload


def adjust_logits(logits: torch.Tensor, draw_inputs: Sequence[DrawInput]) -> torch.Tensor:
    """Return ``logits`` after penalties, bias and bans.

    Args:
        logits: float32 of shape [rows, vocab size]; not changed.
        draw_inputs: one for each row; the token ids of their histories lie in ``range(vocab size)``.
    """
    if not any(map(is_adjusted, {id(each.sampling): each.sampling for each in draw_inputs}.values())):
        return logits
    changes = list(_list_changes(draw_inputs, logits.shape[-1]))
    repeating = [row for row, each in enumerate(draw_inputs) if each.sampling.repetition_penalty != 1]
    discouraged = [row for row, each in enumerate(draw_inputs) if each.num_output and _discourages(each)]
    if not (changes or repeating or discouraged):
        return logits
    logits = logits.clone()
    if repeating:
        _repeat(logits, repeating, draw_inputs)
    if discouraged:
        _discourage(logits, discouraged, draw_inputs)
    if changes:
        rows, tokens, values = zip(*changes, strict=True)
        where = torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
        logits.index_put_(where, torch.tensor(values, device=logits.device), accumulate=True)
    return logits


def make_column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return ``values`` as float32 of shape [rows, 1]."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]


def is_adjusted(sampling: Sampling) -> bool:
    """Return whether logits may change before a draw."""
    is_penalised = sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty
    return bool(is_penalised or sampling.logit_bias or sampling.min_tokens)


def _discourages(draw_input: DrawInput) -> bool:
    return bool(draw_input.sampling.frequency_penalty or draw_input.sampling.presence_penalty)


def _repeat(logits: torch.Tensor, rows: Sequence[int], draw_inputs: Sequence[DrawInput]) -> None:
    """Apply the repetition penalty."""
    seen = _count([draw_inputs[row].history for row in rows], logits) > 0
    penalty = make_column([draw_inputs[row].sampling.repetition_penalty for row in rows], logits.device)
    part = logits[rows]
    logits[rows] = torch.where(seen, torch.where(part > 0, part / penalty, part * penalty), part)


def _discourage(logits: torch.Tensor, rows: Sequence[int], draw_inputs: Sequence[DrawInput]) -> None:
    """Apply the frequency and the presence penalty."""
    counts = _count([draw_inputs[row].output for row in rows], logits)
    frequency = make_column([draw_inputs[row].sampling.frequency_penalty for row in rows], logits.device)
    presence = make_column([draw_inputs[row].sampling.presence_penalty for row in rows], logits.device)
    part = logits[rows]
    logits[rows] = torch.where(counts > 0, part - (frequency * counts + presence), part)


def _list_changes(draw_inputs: Sequence[DrawInput], size: int) -> Iterator[tuple[int, int, float]]:
    """Yield the row, the token and the number to add to its logit."""
    for row, draw_input in enumerate(draw_inputs):
        sampling = draw_input.sampling
        if not (sampling.logit_bias or sampling.min_tokens):
            continue
        is_early = draw_input.num_output < sampling.min_tokens
        bans = ((token, -math.inf) for token in sampling.stop_ids if is_early)
        yield from ((row, token, change) for token, change in (*sampling.logit_bias, *bans) if 0 <= token < size)


def _count(histories: Sequence[Sequence[int]], logits: torch.Tensor) -> torch.Tensor:
    """Return how often each history holds each token, float32 of shape [histories, vocab size]."""
    tokens, rows = array("q"), array("q")
    for row, history in enumerate(histories):
        tokens.extend(history)
        rows.extend(array("q", [row]) * len(history))
    counts = torch.zeros((len(histories), logits.shape[-1]), device=logits.device)
    where = upload(rows).to(logits.device), upload(tokens).to(logits.device)
    return counts.index_put_(where, torch.ones(len(tokens), device=logits.device), accumulate=True)
