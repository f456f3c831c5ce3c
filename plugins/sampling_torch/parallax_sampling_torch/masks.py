"""Applies the masks of grammars to logits: `parallax_core.api.mask_logits` for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from parallax_core.api import MaskSource, Tensor
from parallax_sampling_torch.tensors import read_tensor


def wait_for_masks(logits: torch.Tensor, masks: MaskSource | None) -> torch.Tensor:
    """Return the logits of a step after its masks, for which it waits; ``logits`` are overwritten.

    Raises:
        BackendFailed: if the masks do not come in time.
    """
    return logits if masks is None else mask_rows(logits, masks.wait())


def mask_rows(logits: torch.Tensor, masks: Mapping[int, Tensor]) -> torch.Tensor:
    """Return ``logits`` with the tokens that masks forbid at minus infinity.

    Args:
        logits: of each output, float32 of shape [outputs, vocab size]; overwritten.
        masks: the masks, by the number of their output.
    """
    if not masks:
        return logits
    forbidden = _find_forbidden(torch.stack([read_tensor(mask) for mask in masks.values()]).to(logits.device))
    forbidden = forbidden[:, : logits.shape[-1]]
    if list(masks) == list(range(len(logits))):
        return logits.masked_fill_(forbidden, -torch.inf)
    places = torch.tensor(list(masks), device=logits.device)
    return logits.index_copy_(0, places, logits[places].masked_fill_(forbidden, -torch.inf))


def _find_forbidden(bits: torch.Tensor) -> torch.Tensor:
    """Return which bits are zero, lowest first: bool of shape [rows, 8 * bytes] from uint8 of shape [rows, bytes]."""
    words = _make_words(bits.device).index_select(0, bits.flatten().int())
    return words.view(torch.bool).view(len(bits), -1)


@cache
def _make_words(device: torch.device) -> torch.Tensor:
    """Return for each byte its inverted bits as eight bools in a word, int64 of shape [256]."""
    bits = (torch.arange(256, dtype=torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return (1 - bits).view(torch.int64)[:, 0].to(device)
