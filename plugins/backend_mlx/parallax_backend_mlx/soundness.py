"""Checks that a stage's inputs and outputs are finite: overflow or damaged weights may break that.

NaN spreads: a token drawn from it is meaningless, and in padded rectangles a NaN key makes NaN scores in every other
row. So a step with NaN fails, and is undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallax_backend_mlx.runtime import mx
from parallax_core.api import BackendFailed, Row, SeqId

HINT = "choose another --dtype, such as float32, and fetch the model again if that does not help"


def check_states(states: mx.array, rows: Sequence[Row], name: str) -> None:
    """Refuse hidden states that are not finite.

    Args:
        states: shape [tokens of all rows, width].
        rows: the rows of the states.
        name: the name of the states in the error.

    Raises:
        BackendFailed: if a number is NaN or infinite.
    """
    refuse_unsound(mx.all(mx.isfinite(states), axis=-1), [row.seq for row in rows for _ in row.tokens], name)


def check_scores(logits: mx.array) -> mx.array:
    """Return which rows can be drawn from, bool of shape [outputs], not evaluated.

    Some models give forbidden tokens minus infinity, which is allowed for some tokens, but not for all.

    Args:
        logits: shape [outputs, vocab_size].
    """
    return mx.all(logits < mx.inf, axis=-1) & (mx.max(logits, axis=-1) > -mx.inf)


def refuse_unsound(sound: mx.array, seqs: Sequence[SeqId], name: str) -> None:
    """Refuse a step with unsound rows.

    Args:
        sound: bool of shape [rows].
        seqs: the sequence of each row.
        name: the name of the numbers in the error.

    Raises:
        BackendFailed: if a row is unsound, naming the sequences.
    """
    flags: Any = sound.tolist()
    if all(flags):
        return
    found = tuple(dict.fromkeys(seq for seq, is_sound in zip(seqs, flags, strict=True) if not is_sound))
    raise BackendFailed(f"{name} of sequence {', '.join(map(str, found))} are not finite numbers", HINT, found)
