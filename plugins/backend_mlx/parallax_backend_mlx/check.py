"""Checks a batch before it runs."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_backend_mlx.sequence_state import SequenceState
from parallax_core.api import Draw, Hidden, Row, Score, StageBatch, StageInfo, Tensor, TensorSpec, Unsupported


def check_batch(batch: StageBatch, contexts: Sequence[SequenceState], info: StageInfo) -> None:
    """Refuse a batch this stage cannot run; ``contexts`` are those of its rows.

    Raises:
        ValueError: if it is too large, or a row does not fit its sequence, the vocabulary or itself.
        Unsupported: if it asks for what `StageInfo.capabilities` does not name.
    """
    if len({row.seq for row in batch.rows}) < len(batch.rows):
        message = "a sequence is in two rows of one batch"
        raise ValueError(message)
    num_tokens = sum(len(row.tokens) for row in batch.rows)
    if num_tokens > info.max_batch_tokens:
        message = f"the batch has {num_tokens} tokens; the most is {info.max_batch_tokens}"
        raise ValueError(message)
    for row, context in zip(batch.rows, contexts, strict=True):
        if problem := _find_problem(row, context, info) or _find_misplaced(row, info):
            message = f"row of sequence {row.seq}: {problem}"
            raise ValueError(message)
        _check_support(row, info)
    _check_hidden(batch.hidden, info.takes, num_tokens)


def _check_hidden(given: Sequence[Tensor], takes: Sequence[TensorSpec], num_tokens: int) -> None:
    if not takes and given:
        message = "this stage begins with layer 0, and takes no hidden states"
        raise ValueError(message)
    shapes = [tensor.shape for tensor in given]
    wanted = [(num_tokens, spec.width) for spec in takes]
    if shapes != wanted:
        message = f"the hidden states have shapes {shapes}; this stage takes {wanted}"
        raise ValueError(message)


def _find_problem(row: Row, context: SequenceState, info: StageInfo) -> str:
    """Return the error in the tokens of ``row``, if any."""
    if row.start != context.length:
        return f"it starts at {row.start}, the sequence's length is {context.length}"
    if not row.tokens:
        return "it has no tokens"
    if row.start + len(row.tokens) > info.context_length:
        return f"it ends beyond the context of {info.context_length} tokens"
    if min(row.tokens) < 0 or max(row.tokens) >= info.vocab_size:
        return f"a token id is not in range({info.vocab_size})"
    return ""


def _find_misplaced(row: Row, info: StageInfo) -> str:
    """Return the error in the outputs of ``row``, if any."""
    if any(not 0 <= output.offset < len(row.tokens) for output in row.outputs):
        return f"it has an output at an offset that is not in range({len(row.tokens)})"
    if any(isinstance(output, Score) and not 0 <= output.token < info.vocab_size for output in row.outputs):
        return f"it scores a token id that is not in range({info.vocab_size})"
    if any(isinstance(output, Draw) and output.count < 1 for output in row.outputs):
        return "it draws less than once"
    return ""


def _check_support(row: Row, info: StageInfo) -> None:
    wants_hidden = any(isinstance(output, Hidden) for output in row.outputs)
    asked = {
        "positions of its own": bool(row.positions),
        "embeddings": bool(row.spans),
        "hidden states": wants_hidden and "hidden" not in info.capabilities,
    }
    for name, is_refused in asked.items():
        if is_refused:
            message = f"row of sequence {row.seq} asks for {name}, which the MLX backend does not support"
            raise Unsupported(message, "leave it out, or choose another backend")
