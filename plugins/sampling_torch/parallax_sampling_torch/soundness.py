"""Checks that a stage's inputs and outputs are finite: overflow or damaged weights may break that."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_core.api import BackendFailed, Row, SeqId, StageBatch
from parallax_sampling_torch.tensors import read_tensor

HINT = "choose another --dtype, such as float32, and fetch the model again if that does not help"


def check_given(batch: StageBatch) -> None:
    """Refuse hidden states that are not finite, before they are used.

    Raises:
        BackendFailed: naming the sequences.
    """
    for tensor in batch.hidden:
        _check_tokens("the hidden states given to this stage", read_tensor(tensor), batch.rows)


def check_hidden(hidden: torch.Tensor, rows: Sequence[Row]) -> None:
    """Refuse computed hidden states, of shape [tokens of all rows, width], that are not finite.

    Raises:
        BackendFailed: naming the sequences.
    """
    _check_tokens("the hidden states this stage computed", hidden, rows)


def check_largest(largest: torch.Tensor, rows: Sequence[Row]) -> None:
    """Refuse logits whose largest is not finite: models may set forbidden tokens, but not all, to minus infinity.

    Args:
        largest: the largest logit of each output, NaN where one of them is, of shape [outputs].
        rows: the rows of the step.

    Raises:
        BackendFailed: naming the sequences.
    """
    sound = torch.isfinite(largest)
    if not bool(sound.all()):
        raise _blame("the scores this stage computed", [row.seq for row in rows for _ in row.outputs], sound)


def _check_tokens(what: str, hidden: torch.Tensor, rows: Sequence[Row]) -> None:
    sound = torch.isfinite(hidden)
    if not bool(sound.all()):
        raise _blame(what, [row.seq for row in rows for _ in row.tokens], sound.flatten(1).all(dim=1))


def _blame(what: str, seqs: Sequence[SeqId], sound: torch.Tensor) -> BackendFailed:
    """Return an error that names the sequences that are not sound; ``sound`` is bool of shape [len(seqs)]."""
    bad = tuple(dict.fromkeys(seq for seq, is_sound in zip(seqs, sound.tolist(), strict=True) if not is_sound))
    return BackendFailed(f"{what} of sequence {', '.join(map(str, bad))} are not finite", HINT, bad)
