"""Draws tokens and applies masks of grammars over logits on the CPU, in one or two passes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch

from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.parts import is_whole
from parallax_backend_torch.kernels.signature import DrawRecord
from parallax_core.api import Tensor, draw_key
from parallax_sampling_torch.draw_inputs import DrawInput
from parallax_sampling_torch.masks import mask_rows
from parallax_sampling_torch.tensors import read_tensor


def draw_rows(logits: torch.Tensor, rows: Sequence[int], draw_inputs: Sequence[DrawInput]) -> torch.Tensor | None:
    """Return the tokens that `parallax_core.api.draw` draws from logits after penalties, bias and bans.

    Only tokens that can still win get noise, in double precision, as in the reference. The token is the same as long as
    no logit divided by the temperature overflows, and different logits stay different.

    Args:
        logits: float32 [rows, vocab size], without NaN.
        rows: the rows to draw from.
        draw_inputs: one for each of these rows; their temperatures are above 0.

    Returns:
        int64 [number of draws]; None if the compiled library does not draw from such logits.
    """
    library = find_library()
    if library is None or logits.device.type != "cpu" or not is_whole(logits, logits):
        return None
    records = (DrawRecord * len(rows))()
    for record, row, each in zip(records, rows, draw_inputs, strict=True):
        sampling = each.sampling
        record.row, record.key = row, draw_key(sampling.seed, each.position, each.choice)
        record.temperature, record.top_k = sampling.temperature, min(sampling.top_k, logits.shape[1])
        record.top_p, record.min_p = sampling.top_p, sampling.min_p
    drawn = torch.empty(len(rows), dtype=torch.int64)
    library.plx_draw(records, len(rows), logits.data_ptr(), logits.shape[1], drawn.data_ptr())
    return drawn


def apply_masks(logits: torch.Tensor, masks: Mapping[int, Tensor]) -> torch.Tensor:
    """Return ``logits``, overwritten, with what masks forbid at minus infinity; see `parallax_core.api.mask_logits`.

    Args:
        logits: of each output, float32 [outputs, vocab size].
        masks: the masks, by the number of their output.

    Raises:
        ValueError: a mask has fewer bits than there are tokens.
    """
    library = find_library()
    if library is None or logits.device.type != "cpu" or not is_whole(logits, logits):
        return mask_rows(logits, masks)
    rows, kept = array("q", masks), [read_tensor(mask) for mask in masks.values()]
    if any(8 * mask.nbytes < logits.shape[1] for mask in kept):
        raise ValueError(f"masks of {[8 * mask.nbytes for mask in kept]} bits do not cover {logits.shape[1]} tokens")
    places = array("Q", [mask.data_ptr() for mask in kept])
    library.plx_forbid(rows.buffer_info()[0], places.buffer_info()[0], len(rows), logits.shape[1], logits.data_ptr())
    return logits
