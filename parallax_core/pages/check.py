"""What may be wrong with a batch or an edit, found before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from parallax_core.base.errors import Unsupported
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import (
    Draw,
    Edit,
    Fork,
    Hidden,
    Open,
    Output,
    Row,
    Score,
    SequenceSpec,
    StageBatch,
    StageInfo,
    Truncate,
)
from parallax_core.pages.pool import PagePool

HINT = "leave it out, or choose another backend"


def check_batch(batch: StageBatch, lengths: Mapping[SeqId, int], info: StageInfo) -> None:
    """Refuse a batch a stage cannot run; ``lengths`` are those of its open sequences.

    Raises:
        KeyError: for a sequence that is not open.
        ValueError: if the batch is too large, or something in it does not fit the rest, the sequences or the model.
        Unsupported: if it asks for what `StageInfo.capabilities` does not name.
    """
    if len({row.seq for row in batch.rows}) < len(batch.rows):
        raise ValueError("a sequence is in two rows of one batch")
    num_tokens = sum(len(row.tokens) for row in batch.rows)
    if num_tokens > info.max_batch_tokens:
        raise ValueError(f"the batch has {num_tokens} tokens, and the most is {info.max_batch_tokens}")
    _check_hidden(batch, num_tokens, info)
    for row in batch.rows:
        if row.seq not in lengths:
            raise KeyError(f"sequence {row.seq} is not open")
        if problem := _find_problem(row, lengths[row.seq], info) or _find_misplaced(row, info):
            raise ValueError(f"row of sequence {row.seq}: {problem}")
        _check_support(row, info)


def check_edit(edit: Edit, specs: Mapping[SeqId, SequenceSpec], pools: Sequence[PagePool], info: StageInfo) -> None:
    """Refuse an edit a stage cannot make; ``specs`` are those of its open sequences.

    Raises:
        KeyError: for a sequence that is not open, or one to be opened that is.
        ValueError: for a length beyond the sequence's, or another adapter in a fork.
        Unsupported: for a length a window or a state cannot go back to, or an adapter where there are none.
    """
    made, named = _find_handles(edit)
    if made in specs:
        raise KeyError(f"sequence {made} is open already")
    if named is not None and named not in specs:
        raise KeyError(f"sequence {named} is not open")
    if isinstance(edit, Open) and edit.spec.adapter and "adapters" not in info.capabilities:
        raise Unsupported(f"this stage has no adapters, and so no {edit.spec.adapter!r}", HINT)
    if isinstance(edit, Fork) and edit.spec and edit.spec.adapter != specs[edit.src].adapter:
        raise ValueError(f"a fork of {edit.src} cannot have the adapter {edit.spec.adapter!r}")
    if isinstance(edit, Fork | Truncate) and named is not None:
        _check_length(named, edit.length, pools)


def check_room(pools: Sequence[PagePool], rows: Sequence[Row]) -> None:
    """Refuse rows for which the pages of some pool do not suffice, one row after the other; nothing changes.

    Raises:
        OutOfPages: if so.
    """
    for pool in pools:
        pool.check_room((row.seq, len(row.tokens)) for row in rows)


def _find_handles(edit: Edit) -> tuple[SeqId | None, SeqId | None]:
    """Return the sequence an edit makes, and the one it needs."""
    match edit:
        case Open(seq):
            return seq, None
        case Fork(src, dst):
            return dst, src
    return None, edit.seq


def _check_length(seq: SeqId, length: int, pools: Sequence[PagePool]) -> None:
    for pool in pools:
        if not 0 <= length <= pool.length(seq):
            raise ValueError(f"length {length} is not within the {pool.length(seq)} tokens of sequence {seq}")
        if not pool.can_rewind(seq, length):
            message = (
                f"a {pool.info.kind} pool cannot take sequence {seq} of {pool.length(seq)} tokens back to {length}"
            )
            raise Unsupported(message, "keep a fork at the length to go back to")


def _check_hidden(batch: StageBatch, num_tokens: int, info: StageInfo) -> None:
    found = [(tensor.dtype, tensor.shape) for tensor in batch.hidden]
    expected = [(spec.dtype, (num_tokens, spec.width)) for spec in info.takes]
    if found != expected:
        raise ValueError(f"the hidden tensors are {found}, and {expected} are expected")
    if batch.embeddings and "embeddings" not in info.capabilities:
        raise Unsupported("this stage takes no embeddings", HINT)


def _find_problem(row: Row, length: int, info: StageInfo) -> str:
    """Return what is wrong with the tokens of a row, or nothing."""
    if row.start != length:
        return f"it starts at {row.start}, and the sequence's length is {length}"
    if not row.tokens:
        return "it has no tokens"
    if row.start + len(row.tokens) > info.context_length:
        return f"it ends beyond the context of {info.context_length} tokens"
    if min(row.tokens) < 0 or max(row.tokens) >= info.vocab_size:
        return f"a token id is not in range({info.vocab_size})"
    return _find_strange(row.positions, len(row.tokens), info.context_length)


def _find_strange(positions: Sequence[int], num_tokens: int, context: int) -> str:
    """Return what is wrong with the positions of a row, or nothing."""
    if not positions:
        return ""
    if len(positions) != num_tokens:
        return f"it has {len(positions)} positions for {num_tokens} tokens"
    if positions[0] < 0 or positions[-1] >= context or any(first >= second for first, second in pairwise(positions)):
        return f"its positions do not increase within range({context})"
    return ""


def _find_misplaced(row: Row, info: StageInfo) -> str:
    """Return what is wrong with the outputs of a row, or nothing."""
    offsets = [output.offset for output in row.outputs]
    if offsets != sorted(offsets) or any(not 0 <= offset < len(row.tokens) for offset in offsets):
        return f"the offsets of its outputs do not ascend within range({len(row.tokens)})"
    if any(isinstance(output, Score) and not 0 <= output.token < info.vocab_size for output in row.outputs):
        return f"it scores a token id that is not in range({info.vocab_size})"
    if any(isinstance(output, Draw) and output.count < 1 for output in row.outputs):
        return "it draws less than once"
    return ""


def _check_support(row: Row, info: StageInfo) -> None:
    asked = {
        "positions": bool(row.positions),
        "embeddings": bool(row.spans),
        "hidden": any(isinstance(output, Hidden) for output in row.outputs),
        "logprobs": any(_wants_logprobs(output) for output in row.outputs),
    }
    for name, wanted in asked.items():
        if wanted and name not in info.capabilities:
            raise Unsupported(f"row of sequence {row.seq} asks for {name}, which this stage does not support", HINT)


def _wants_logprobs(output: Output) -> bool:
    return isinstance(output, Score) or (isinstance(output, Draw) and output.top >= 0)
