"""Checks that inputs and outputs of a stage are finite: overflow, damaged weights or another stage may break that."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_backend_torch.kernels.parts import find_largest
from parallax_backend_torch.network import RunResult
from parallax_backend_torch.tensors import read_tensor
from parallax_core.api import BackendFailed, Row, SeqId, StageBatch

HINT = "choose another --dtype, such as float32, and fetch the model again if that does not help"


def check_given(batch: StageBatch) -> None:
    """Refuse hidden states that are not finite, before they are used.

    Raises:
        BackendFailed: naming the sequences.
    """
    for tensor in batch.hidden:
        sound = torch.isfinite(read_tensor(tensor)).all(dim=-1)
        if not bool(sound.all()):
            seqs = [row.seq for row in batch.rows for _ in row.tokens]
            raise _blame("the hidden states given to this stage", seqs, sound)


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
    if found.hidden is not None and not bool(torch.isfinite(found.hidden).all()):
        seqs = [row.seq for row in rows for _ in row.tokens]
        raise _blame("the hidden states this stage computed", seqs, torch.isfinite(found.hidden).all(dim=-1))
    if found.logits is None or not found.logits.numel():
        return None
    best, most = find_largest(found.logits)  # NaN if there is one
    if not bool(torch.isfinite(most).all()):
        seqs = [row.seq for row in rows for _ in row.outputs]
        raise _blame("the scores this stage computed", seqs, torch.isfinite(most))
    return best


def _blame(what: str, seqs: Sequence[SeqId], sound: torch.Tensor) -> BackendFailed:
    """Return an error that names the sequences that are not sound; ``sound`` is bool of shape [len(seqs)]."""
    bad = tuple(dict.fromkeys(seq for seq, is_sound in zip(seqs, sound.tolist(), strict=True) if not is_sound))
    return BackendFailed(f"{what} of sequence {', '.join(map(str, bad))} are not finite", HINT, bad)
