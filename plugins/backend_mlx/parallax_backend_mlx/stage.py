"""A whole model behind the stage contract, its rows run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallax_backend_mlx.answer import draw_tokens, make_answers
from parallax_backend_mlx.cache import Mark, list_arrays
from parallax_backend_mlx.check import check_batch
from parallax_backend_mlx.context import Context
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_core.api import (
    Answer,
    BackendFailed,
    Drop,
    Edit,
    Fork,
    Hidden,
    Open,
    OutOfPages,
    PagePool,
    Row,
    SeqId,
    StageBatch,
    StageInfo,
    StageResult,
    Truncate,
    Unsupported,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step that is over: MLX arrays stay with their thread, so a step ends before it returns."""

    result: StageResult

    def wait(self) -> StageResult:
        """Return the result at once."""
        return self.result


class MlxStage:
    """See `parallax_core.api.Stage`.

    Its pools are an account: mlx-lm keeps the keys and values of a sequence in arrays of its own, and shares none.
    """

    def __init__(self, network: Network, info: StageInfo) -> None:
        self._info = info
        self._network: Network | None = network
        self._sampler = Sampler(info.vocab_size)
        self._contexts: dict[SeqId, Context] = {}
        self._pools = [PagePool(pool) for pool in info.pools]
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself."""
        return self._info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order. One that raises changes nothing, and those before it stay.

        Raises:
            KeyError: for a sequence that is not open, or one to be opened that already is.
            ValueError: if a length is beyond the sequence's, or a fork has another adapter.
            Unsupported: if the model's state cannot go back to that length, or for an adapter.
            OutOfPages: if a fork needs a page and none is free.
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
            Unsupported: for what the stage's capabilities do not name.
            OutOfPages: if the pool has too few free pages.
            BackendFailed: if MLX failed; the sequences are as before, or the stage says that it is lost.
        """
        network = self._get_network()
        contexts = [self._contexts[row.seq] for row in batch.rows]
        check_batch(batch, contexts, self._info)
        self._check_pages(batch.rows)
        marks = [Mark(context.cache) for context in contexts]
        try:
            answers = self._run_rows(network, batch.rows, contexts)
        except BaseException as error:  # an interrupt too must leave the sequences as they were
            self._restore_marks(marks, contexts)
            if not isinstance(error, Exception):
                raise
            hint = "try again; if it happens again, restart with fewer requests at once"
            raise BackendFailed(f"the model failed in a step: {error}", hint) from error
        for row, context in zip(batch.rows, contexts, strict=True):
            for pool in self._pools:
                pool.extend(row.seq, len(row.tokens))
            context.tokens.extend(row.tokens)
        return Outcome(StageResult(answers, free=tuple(pool.num_free for pool in self._pools)))

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
            case Open(seq, spec, choice):
                self._check_new(seq)
                if spec.adapter:
                    message = f"the MLX backend has no adapters, and so no {spec.adapter!r}"
                    raise Unsupported(message, "leave the adapter out, or choose another backend")
                self._contexts[seq] = Context(spec, network.make_cache(), choice)
            case Fork(src, dst, _):
                source = self._contexts[src]
                self._check_new(dst)
                self._contexts[dst] = source.fork(edit)
            case Truncate(seq, length):
                self._contexts[seq].truncate(length)
            case Drop(seq):
                del self._contexts[seq]
        self._account(edit)

    def _account(self, edit: Edit) -> None:
        """Apply an edit to every pool; only a fork may find too few pages, and is undone then."""
        try:
            for pool in self._pools:
                pool.edit(edit)
        except OutOfPages:
            assert isinstance(edit, Fork)
            del self._contexts[edit.dst]
            for pool in self._pools:
                if edit.dst in pool:
                    pool.drop(edit.dst)
            raise

    def _check_new(self, seq: SeqId) -> None:
        if seq in self._contexts:
            message = f"sequence {seq} is already open"
            raise KeyError(message)

    def _check_pages(self, rows: Sequence[Row]) -> None:
        """Raise OutOfPages if ``rows`` do not fit, without taking a page; as no page is shared, needs add up."""
        for pool in self._pools:
            needed = sum(pool.num_needed(row.seq, len(row.tokens)) for row in rows)
            if needed > pool.num_free:
                raise OutOfPages(needed, pool.num_free)

    def _run_rows(self, network: Network, rows: Sequence[Row], contexts: Sequence[Context]) -> tuple[Answer, ...]:
        parts = []
        for row, context in zip(rows, contexts, strict=True):
            offsets = [output.offset for output in row.outputs]
            picked = network.run_tokens(row.tokens, context.cache, offsets or [len(row.tokens) - 1])
            if offsets:
                parts.append(picked)
        # What a prefill row would give its head is never evaluated; its caches must be, or the work would pile up.
        arrays = list_arrays([context.cache for context in contexts])
        if not parts:
            mx.eval(arrays)
            return ()
        logits = mx.concatenate(parts)
        outputs = [output for row in rows for output in row.outputs if not isinstance(output, Hidden)]
        drafts = [draft for row, context in zip(rows, contexts, strict=True) for draft in context.list_drafts(row)]
        drawn = draw_tokens(self._sampler, logits, outputs, drafts) if drafts else mx.array([], dtype=mx.uint32)
        mx.eval(drawn, arrays)
        tokens: Any = drawn.tolist()
        return make_answers(logits, outputs, tokens)

    def _restore_marks(self, marks: Sequence[Mark], contexts: Sequence[Context]) -> None:
        """Put the caches back, and prove it by computing them; what cannot be proved is lost."""
        try:
            for mark in marks:
                mark.restore()
            mx.eval(list_arrays([context.cache for context in contexts]))
        except Exception as error:  # noqa: BLE001  # whatever it is, the caches can no longer be trusted
            self._contexts.clear()
            self._lost = f"the stage is lost: its caches could not be put back after a failed step: {error}"
