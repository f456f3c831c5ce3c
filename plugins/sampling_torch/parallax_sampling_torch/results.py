"""Computes the result of a step of the last stage from its logits."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from parallax_core.api import Entry, SeqId, StageBatch, StageResult
from parallax_sampling_torch.masks import wait_for_masks
from parallax_sampling_torch.outputs import answer_outputs, draw_tokens, list_outputs, write_states
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.soundness import check_largest


def compute_result(
    sampler: Sampler, batch: StageBatch, entries: Mapping[SeqId, Entry], logits: torch.Tensor, states: torch.Tensor
) -> StageResult:
    """Return the result of a step with outputs, without its free pages; waits for the step's masks.

    Args:
        sampler: draws over the vocabulary of the logits.
        batch: the batch of the step.
        entries: the sequences of its rows, with the tokens of the batch.
        logits: of each output, float32 of shape [outputs, vocab size].
        states: the hidden state of each output, of shape [outputs, width].

    Raises:
        BackendFailed: if logits are not finite, or a mask does not come in time.
    """
    outputs = list_outputs(batch)
    largest, best = logits.max(dim=-1)
    check_largest(largest, batch.rows)
    masked = wait_for_masks(logits, batch.masks)
    begun = time.perf_counter()
    drawn = draw_tokens(sampler, masked, batch, entries, best if batch.masks is None else None)
    answers, given = answer_outputs(outputs, masked, drawn), write_states(outputs, states)
    return StageResult(answers, given, sampling_s=time.perf_counter() - begun)
