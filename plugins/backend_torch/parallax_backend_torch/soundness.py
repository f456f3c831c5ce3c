"""Checks that the results of a run are finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_backend_torch.kernels.parts import find_largest
from parallax_backend_torch.network import RunResult
from parallax_core.api import Row
from parallax_sampling_torch.soundness import check_hidden, check_largest


def check_found(found: RunResult, rows: Sequence[Row]) -> torch.Tensor | None:
    """Refuse results that are not finite; a model may give forbidden tokens minus infinity, but not all tokens.

    Args:
        found: the results of a run.
        rows: the rows of the step.

    Returns:
        The best token of each row of scores, a by-product, int64 of shape [outputs]; None without scores.

    Raises:
        BackendFailed: naming the results and the sequences.
    """
    if found.carried is not None:
        for plane in (found.carried.hidden, *found.carried.others.values()):
            check_hidden(plane, rows)
    if found.logits is None or not found.logits.numel():
        return None
    best, most = find_largest(found.logits)  # NaN if there is one
    check_largest(most, rows)
    return best
