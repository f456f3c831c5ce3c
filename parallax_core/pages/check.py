"""Checks batches and edits before anything changes."""

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
    Row,
    Score,
    SequenceSpec,
    StageBatch,
    StageInfo,
    Truncate,
)
from parallax_core.pages.pool import PagePool

HINT = "leave it out, or choose another backend"
PLAIN = Draw(0)


def check_batch(batch: StageBatch, lengths: Mapping[SeqId, int], info: StageInfo) -> None:
    """Refuse a batch that a stage cannot run; ``lengths`` are those of its open sequences.

    Raises:
        KeyError: if a sequence is not open.
        ValueError: if the batch is too large or inconsistent with itself, the sequences or the model.
        Unsupported: if it needs a capability that `StageInfo.capabilities` does not list.
    """
    if len({row.seq for row in batch.rows}) < len(batch.rows):
        raise ValueError("a sequence is in two rows of one batch")
    num_tokens = sum(len(row.tokens) for row in batch.rows)
    if num_tokens > info.max_batch_tokens:
        raise ValueError(f"the batch has {num_tokens} tokens; at most {info.max_batch_tokens} are allowed")
    _check_hidden(batch, num_tokens, info)
    for row in batch.rows:
        if row.seq not in lengths:
            raise KeyError(f"sequence {row.seq} is not open")
        if _is_plain_decode(row, lengths[row.seq], info):
            continue
        if problem := _find_problem(row, lengths[row.seq], info) or _find_misplaced(row, info):
            raise ValueError(f"row of sequence {row.seq}: {problem}")
        _check_support(row, info)
    if batch.masks is None and not info.gives and any(map(_waits_for_mask, batch.rows)):
        raise ValueError("a draw waits for a mask, and the batch has no masks")


def check_edit(edit: Edit, specs: Mapping[SeqId, SequenceSpec], pools: Sequence[PagePool], info: StageInfo) -> None:
    """Refuse an edit that a stage cannot apply; ``specs`` are those of its open sequences.

    Raises:
        KeyError: if a sequence is not open, or one to be opened is.
        ValueError: if a length exceeds the sequence's, or a fork has another adapter.
        Unsupported: if a window or state cannot be rewound to a length, or the stage has no adapters.
    """
    made, named = _find_handles(edit)
    if made in specs:
        raise KeyError(f"sequence {made} is open already")
    if named is not None and named not in specs:
        raise KeyError(f"sequence {named} is not open")
    if isinstance(edit, Open) and edit.spec.adapter and "adapters" not in info.capabilities:
        raise Unsupported(f"this stage has no adapters, so {edit.spec.adapter!r} cannot be used", HINT)
    if isinstance(edit, Fork) and edit.spec and edit.spec.adapter != specs[edit.src].adapter:
        raise ValueError(f"a fork of {edit.src} cannot have the adapter {edit.spec.adapter!r}")
    if isinstance(edit, Fork | Truncate) and named is not None:
        _check_length(named, edit.length, pools)


def check_room(pools: Sequence[PagePool], rows: Sequence[Row]) -> None:
    """Check that every pool has enough pages for the rows, applied one after the other; change nothing.

    Raises:
        OutOfPages: if a pool has too few.
    """
    for pool in pools:
        pool.check_room((row.seq, len(row.tokens)) for row in rows)


def _find_handles(edit: Edit) -> tuple[SeqId | None, SeqId | None]:
    """Return the sequence that an edit opens, and the one that must be open."""
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
            message = f"a {pool.info.kind} pool cannot rewind sequence {seq} of {pool.length(seq)} tokens to {length}"
            raise Unsupported(message, "keep a fork at the length to rewind to")


def _check_hidden(batch: StageBatch, num_tokens: int, info: StageInfo) -> None:
    found = [(tensor.dtype, tensor.shape) for tensor in batch.hidden]
    expected = [(spec.dtype, (num_tokens, *spec.token_shape)) for spec in info.takes]
    if found != expected:
        raise ValueError(f"the hidden tensors are {found}; expected {expected}")
    if batch.embeddings and "embeddings" not in info.capabilities:
        raise Unsupported("this stage takes no embeddings", HINT)


def _is_plain_decode(row: Row, length: int, info: StageInfo) -> bool:
    """Return whether a row has one token and one plain draw, without fault, as most rows have: a quick check."""
    if len(row.tokens) != 1 or len(row.outputs) != 1 or row.positions or row.spans:
        return False
    return (
        row.outputs[0] == PLAIN and row.start == length < info.context_length and 0 <= row.tokens[0] < info.vocab_size
    )


def _find_problem(row: Row, length: int, info: StageInfo) -> str:
    """Return the fault of a row's tokens, or an empty string."""
    if row.start != length:
        return f"it starts at {row.start}, but the sequence's length is {length}"
    if not row.tokens:
        return "it has no tokens"
    if row.start + len(row.tokens) > info.context_length:
        return f"it ends beyond the context of {info.context_length} tokens"
    if min(row.tokens) < 0 or max(row.tokens) >= info.vocab_size:
        return f"a token id is not in range({info.vocab_size})"
    return _find_strange(row.positions, len(row.tokens), info.context_length)


def _find_strange(positions: Sequence[int], num_tokens: int, context: int) -> str:
    """Return the fault of a row's positions, or an empty string."""
    if not positions:
        return ""
    if len(positions) != num_tokens:
        return f"it has {len(positions)} positions for {num_tokens} tokens"
    if positions[0] < 0 or positions[-1] >= context or any(first >= second for first, second in pairwise(positions)):
        return f"its positions do not increase within range({context})"
    return ""


def _find_misplaced(row: Row, info: StageInfo) -> str:
    """Return the fault of a row's outputs, or an empty string."""
    offsets = [output.offset for output in row.outputs]
    if offsets != sorted(offsets) or any(not 0 <= offset < len(row.tokens) for offset in offsets):
        return f"the offsets of its outputs do not ascend within range({len(row.tokens)})"
    if any(isinstance(output, Hidden) and not 0 <= output.summed <= output.offset + 1 for output in row.outputs):
        return "it sums the hidden states of tokens before its first"
    if any(isinstance(output, Score) and not 0 <= output.token < info.vocab_size for output in row.outputs):
        return f"it scores a token id that is not in range({info.vocab_size})"
    if any(isinstance(output, Draw) and output.count < 1 for output in row.outputs):
        return "it draws less than once"
    return ""


def _check_support(row: Row, info: StageInfo) -> None:
    needed = {
        "positions": bool(row.positions),
        "embeddings": bool(row.spans),
        "hidden": any(isinstance(output, Hidden) for output in row.outputs),
        "hidden_sums": any(isinstance(output, Hidden) and output.summed for output in row.outputs),
        "logprobs": any(isinstance(each, Score) or (isinstance(each, Draw) and each.top >= 0) for each in row.outputs),
        "masks": not info.gives and _waits_for_mask(row),
    }
    for name, is_needed in needed.items():
        if is_needed and name not in info.capabilities:
            raise Unsupported(f"row of sequence {row.seq} asks for {name}, which this stage does not support", HINT)


def _waits_for_mask(row: Row) -> bool:
    return any(isinstance(output, Draw) and output.masked for output in row.outputs)
