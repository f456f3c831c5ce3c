"""Applies masks of grammars to logits in MLX arrays: `parallax_core.api.mask_logits` for many rows."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from parallax_backend_mlx.runtime import mx
from parallax_core.api import MaskSource, Tensor


def wait_for_masks(logits: mx.array, masks: MaskSource | None) -> mx.array:
    """Wait for the masks of a step and return its logits under them; ``logits`` themselves without masks.

    Raises:
        BackendFailed: if the masks do not come in time.
    """
    return logits if masks is None else mask_rows(logits, masks.wait())


def mask_rows(logits: mx.array, masks: Mapping[int, Tensor]) -> mx.array:
    """Return ``logits`` with the tokens that masks forbid at minus infinity.

    Args:
        logits: of each output, shape [outputs, vocab_size].
        masks: the masks, by the number of their output.
    """
    if not masks:
        return logits
    packed = array("B", b"".join([bytes(mask.data) for mask in masks.values()]))
    bits = mx.array(packed).reshape(len(masks), -1, 1)  # type: ignore[arg-type]  # MLX takes buffers
    unpacked = (bits >> mx.arange(8, dtype=mx.uint8)) & 1
    allowed = unpacked.reshape(len(masks), -1)[:, : logits.shape[-1]].astype(mx.bool_)
    if list(masks) == list(range(len(logits))):
        return mx.where(allowed, logits, -mx.inf)
    places = mx.array(list(masks))
    changed = logits[...]
    changed[places] = mx.where(allowed, logits[places], -mx.inf)
    return changed
