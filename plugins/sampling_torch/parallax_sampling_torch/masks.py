"""Applies the masks of grammars to logits: `parallax_core.api.mask_logits` for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from parallax_core.api import MaskSource, Tensor
from parallax_sampling_torch.tensors import read_tensor


def wait_for_masks(logits: torch.Tensor, masks: MaskSource | None) -> torch.Tensor:
    """Return the logits of a step after its masks, for which it waits; ``logits`` themselves if it has none.

    Raises:
        BackendFailed: if the masks do not come in time.
    """
    return logits if masks is None else mask_rows(logits, masks.wait())


def mask_rows(logits: torch.Tensor, masks: Mapping[int, Tensor]) -> torch.Tensor:
    """Return ``logits`` with the tokens that masks forbid at minus infinity.

    Args:
        logits: of each output, float32 of shape [outputs, vocab size]; not changed.
        masks: the masks, by the number of their output.
    """
    if not masks:
        return logits
    forbidden = ~_unpack(torch.stack([read_tensor(mask) for mask in masks.values()]).to(logits.device))
    forbidden = forbidden[:, : logits.shape[-1]]
    if list(masks) == list(range(len(logits))):
        return logits.masked_fill(forbidden, -torch.inf)
    places = torch.tensor(list(masks), device=logits.device)
    return logits.index_copy(0, places, logits[places].masked_fill(forbidden, -torch.inf))


def _unpack(bits: torch.Tensor) -> torch.Tensor:
    """Return the bits of bytes, lowest first: bool of shape [rows, 8 * bytes] from uint8 of shape [rows, bytes]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[..., None] >> shifts) & 1).flatten(1).bool()
