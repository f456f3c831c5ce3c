"""Applies the mask of a grammar to logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax_core.contracts.tensor import Tensor


def mask_logits(logits: Sequence[float], mask: Tensor | None) -> Sequence[float]:
    """Return ``logits``, one per token id, with those that ``mask`` forbids at minus infinity; None forbids nothing.

    It comes before all other operations on logits. For the form of a mask, see `MaskSource.wait`.
    """
    if mask is None:
        return logits
    bits = memoryview(mask.data).cast("B")
    return [logit if bits[token // 8] >> token % 8 & 1 else -math.inf for token, logit in enumerate(logits)]
