"""A whole model behind the stage contract, its rows run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_backend_mlx.cache import Cache, Mark, copy_cache, cut_cache, list_arrays
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Draft, Sampler
from parallax_core.api import (
    BackendFailed,
    Drop,
    Edit,
    Fork,
    Open,
    Row,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
    Truncate,
)


@dataclass(slots=True)
class Context:
    """What the stage keeps of one sequence."""

    spec: SequenceSpec
    cache: Cache
    length: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step that is over: MLX arrays stay with their thread, so a step ends before it returns."""

    result: StageResult

    def wait(self) -> StageResult:
        """Return the result at once."""
        return self.result


class MlxStage:
    """See `parallax_core.api.Stage`."""

    def __init__(self, network: Network, info: StageInfo) -> None:
        self._info = info
        self._network: Network | None = network
        self._sampler = Sampler(info.vocab_size)
        self._contexts: dict[SeqId, Context] = {}
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself."""
        return self._info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order.

        Raises:
            KeyError: for a sequence that is not open, or one to be opened that already is.
            ValueError: if a length is beyond the sequence's.
            Unsupported: if the model's state cannot go back to that length.
        """
        network = self._get_network()
        for edit in edits:
            self._apply_edit(edit, network)
        if any(isinstance(edit, Drop) for edit in edits):
            mx.clear_cache()

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: for a row or batch that is malformed.
            BackendFailed: if MLX failed; the sequences are as before, or the stage says that it is lost.
        """
        network = self._get_network()
        contexts = self._check_batch(batch)
        marks = [Mark(context.cache) for context in contexts]
        try:
            drawn = self._run_rows(network, batch.rows, contexts)
        except BaseException as error:  # an interrupt too must leave the sequences as they were
            self._restore_marks(marks, contexts)
            if not isinstance(error, Exception):
                raise
            hint = "try again; if it happens again, restart with fewer requests at once"
            raise BackendFailed(f"the model failed in a step: {error}", hint) from error
        for row, context in zip(batch.rows, contexts, strict=True):
            context.length += len(row.tokens)
        return Outcome(StageResult(drawn=tuple(drawn)))

    def close(self) -> None:
        """Release the model and every sequence. Calling it twice is harmless."""
        self._network = None
        self._contexts.clear()
        mx.clear_cache()

    def _get_network(self) -> Network:
        if self._lost:
            raise BackendFailed(self._lost, "open the stage again")
        if self._network is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        return self._network

    def _apply_edit(self, edit: Edit, network: Network) -> None:
        match edit:
            case Open(seq, spec):
                self._check_free(seq)
                self._contexts[seq] = Context(spec, network.make_cache())
            case Fork(src, dst, length):
                self._fork_sequence(src, dst, length)
            case Truncate(seq, length):
                context = self._contexts[seq]
                cut_cache(context.cache, _find_excess(context, length))
                context.length = length
            case Drop(seq):
                del self._contexts[seq]

    def _fork_sequence(self, src: SeqId, dst: SeqId, length: int) -> None:
        source = self._contexts[src]
        self._check_free(dst)
        excess = _find_excess(source, length)
        cache = copy_cache(source.cache)
        cut_cache(cache, excess)
        self._contexts[dst] = Context(source.spec, cache, length)

    def _check_free(self, seq: SeqId) -> None:
        if seq in self._contexts:
            message = f"sequence {seq} is already open"
            raise KeyError(message)

    def _check_batch(self, batch: StageBatch) -> list[Context]:
        """Return the context of each row, having touched nothing.

        Raises:
            KeyError, ValueError: as `step`.
        """
        contexts = [self._contexts[row.seq] for row in batch.rows]
        if len({row.seq for row in batch.rows}) < len(batch.rows):
            message = "a sequence is in two rows of one batch"
            raise ValueError(message)
        num_tokens = sum(len(row.tokens) for row in batch.rows)
        if num_tokens > self._info.max_batch_tokens:
            message = f"the batch has {num_tokens} tokens; the most is {self._info.max_batch_tokens}"
            raise ValueError(message)
        for row, context in zip(batch.rows, contexts, strict=True):
            if problem := self._find_problem(row, context):
                message = f"row of sequence {row.seq}: {problem}"
                raise ValueError(message)
        return contexts

    def _find_problem(self, row: Row, context: Context) -> str:
        """Return what is wrong with ``row``, or nothing."""
        if row.start != context.length:
            return f"it starts at {row.start}, the sequence's length is {context.length}"
        if not row.tokens:
            return "it has no tokens"
        if row.start + len(row.tokens) > self._info.context_length:
            return f"it ends beyond the context of {self._info.context_length} tokens"
        if min(row.tokens) < 0 or max(row.tokens) >= self._info.vocab_size:
            return f"a token id is not in range({self._info.vocab_size})"
        if any(not 0 <= output.offset < len(row.tokens) for output in row.outputs):
            return f"it draws at an offset that is not in range({len(row.tokens)})"
        return ""

    def _run_rows(self, network: Network, rows: Sequence[Row], contexts: Sequence[Context]) -> list[int]:
        logits: list[mx.array] = []
        drafts: list[Draft] = []
        for row, context in zip(rows, contexts, strict=True):
            offsets = [output.offset for output in row.outputs]
            picked = network.run_tokens(row.tokens, context.cache, offsets or [len(row.tokens) - 1])
            if offsets:
                logits.append(picked)
                drafts += [Draft(context.spec.sampling, row.start + offset + 1) for offset in offsets]
        drawn = [self._sampler.sample(mx.concatenate(logits), drafts)] if drafts else []
        # What a prefill row would give its head is never evaluated; its caches must be, or the work would pile up.
        mx.eval(drawn, list_arrays([context.cache for context in contexts]))
        return [int(token) for tokens in drawn for token in memoryview(tokens)]  # type: ignore[arg-type]

    def _restore_marks(self, marks: Sequence[Mark], contexts: Sequence[Context]) -> None:
        """Put the caches back, and prove it by computing them; what cannot be proved is lost."""
        try:
            for mark in marks:
                mark.restore()
            mx.eval(list_arrays([context.cache for context in contexts]))
        except Exception as error:  # noqa: BLE001  # whatever it is, the caches can no longer be trusted
            self._contexts.clear()
            self._lost = f"the stage is lost: its caches could not be put back after a failed step: {error}"


def _find_excess(context: Context, length: int) -> int:
    if not 0 <= length <= context.length:
        message = f"length {length} is not within the sequence's length {context.length}"
        raise ValueError(message)
    return context.length - length
