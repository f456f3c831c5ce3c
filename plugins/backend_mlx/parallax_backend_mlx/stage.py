"""Layers of a model behind the stage contract."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from parallax_backend_mlx.account import Account, Copies
from parallax_backend_mlx.answer import draw_tokens
from parallax_backend_mlx.check import check_batch
from parallax_backend_mlx.ranking import rank_tokens
from parallax_backend_mlx.results import Found, Runner
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_backend_mlx.sequence_state import SequenceState
from parallax_backend_mlx.soundness import check_scores, check_states, refuse_unsound
from parallax_backend_mlx.tensors import read_tensor, write_tensor
from parallax_core.api import (
    BackendFailed,
    Drop,
    Edit,
    Fork,
    Hidden,
    Mark,
    Open,
    Output,
    Row,
    SeqId,
    StageBatch,
    StageInfo,
    StageLost,
    StageResult,
    Tensor,
    Truncate,
    Unsupported,
    make_answers,
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

    Args:
        info: the properties of the stage.
        account: pages of the pools that ``info`` names.
        runner: keeps the sequences where ``account`` says, and runs rows of them.
    """

    def __init__(self, info: StageInfo, account: Account, runner: Runner) -> None:
        self._info = info
        self._account = account
        self._runner: Runner | None = runner
        self._sampler = Sampler(info.vocab_size)
        self._contexts: dict[SeqId, SequenceState] = {}
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order. An edit that raises changes nothing; the edits before it stay applied.

        Raises:
            KeyError: for a sequence that is not open, or one to be opened that already is.
            ValueError: if a length is beyond the sequence's, or a fork has another adapter.
            Unsupported: if the model's state cannot go back to that length, or for an adapter.
            OutOfPages: if a fork needs a page and none is free.
            StageLost: if MLX failed to copy.
        """
        runner = self._get_runner()
        for edit in edits:
            context = self._prepare_edit(edit)
            copies = self._account.edit(edit)
            try:
                runner.edit(edit, copies)
            except Exception as error:
                self._lose(f"it could not copy what a sequence holds: {error}")
                raise StageLost(self._lost, "open the stage again") from error
            self._finish_edit(edit, context)
        if any(isinstance(edit, Drop) for edit in edits):
            mx.clear_cache()

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: for a row or batch that is malformed.
            Unsupported: for what the stage's capabilities do not name.
            OutOfPages: if the pool has too few free pages.
            BackendFailed: if MLX failed, or computed or was given what are no finite numbers; the sequences are as
                before.
            StageLost: if they cannot be put back.
        """
        runner = self._get_runner()
        contexts = [self._contexts[row.seq] for row in batch.rows]
        check_batch(batch, contexts, self._info)
        if not batch.rows:
            return Outcome(StageResult(free=self._account.free))
        marks = self._account.save(batch.rows)
        copies = self._account.extend(batch.rows, marks)
        try:
            result = self._run(runner, batch, copies)
        except BaseException as error:  # an interrupt too must leave the sequences as they were
            self._take_back(runner, marks)
            if self._lost:
                raise StageLost(self._lost, "open the stage again") from error
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            hint = "try again; if it happens again, restart with fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {error}", hint) from error
        for row, context in zip(batch.rows, contexts, strict=True):
            context.tokens.extend(row.tokens)
        return Outcome(result)

    def close(self) -> None:
        """Release the model and every sequence. Calling it twice is harmless."""
        self._runner = None
        self._contexts.clear()
        mx.clear_cache()

    def _get_runner(self) -> Runner:
        if self._lost:
            raise StageLost(self._lost, "open the stage again")
        if self._runner is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        return self._runner

    def _prepare_edit(self, edit: Edit) -> SequenceState | None:
        """Refuse an edit that cannot be made; return the context it begins, if it begins one."""
        match edit:
            case Open(seq, spec, choice):
                self._check_new(seq)
                if spec.adapter:
                    message = f"the MLX backend has no adapters, and so no {spec.adapter!r}"
                    raise Unsupported(message, "leave the adapter out, or choose another backend")
                return SequenceState(spec, choice)
            case Fork(src, dst, length):
                source = self._contexts[src]
                self._check_new(dst)
                self._check_length(src, length)
                return source.fork(edit)
            case Truncate(seq, length):
                self._check_length(seq, length)
            case Drop(seq):
                self._contexts[seq]
        return None

    def _finish_edit(self, edit: Edit, context: SequenceState | None) -> None:
        match edit:
            case Open(seq) | Fork(_, seq) if context is not None:
                self._contexts[seq] = context
            case Truncate(seq, length):
                del self._contexts[seq].tokens[length:]
            case Drop(seq):
                del self._contexts[seq]

    def _check_new(self, seq: SeqId) -> None:
        if seq in self._contexts:
            message = f"sequence {seq} is already open"
            raise KeyError(message)

    def _check_length(self, seq: SeqId, length: int) -> None:
        held = self._contexts[seq].length
        if not 0 <= length <= held:
            message = f"length {length} is not within the sequence's length {held}"
            raise ValueError(message)
        if not self._account.can_rewind(seq, length):
            message = f"what this model keeps of a sequence cannot go back {held - length} tokens"
            raise Unsupported(message, "fork or truncate its sequences near their current length only")

    def _run(self, runner: Runner, batch: StageBatch, copies: Copies) -> StageResult:
        hidden = read_tensor(batch.hidden[0]) if batch.hidden else None
        if hidden is not None:
            check_states(hidden, batch.rows, "the hidden states given to this stage")
        found = runner.run(batch.rows, hidden, copies)
        free = self._account.free
        if found.hidden is not None:
            check_states(found.hidden, batch.rows, "the hidden states")
            return StageResult(tensors=(write_tensor(found.hidden),), free=free)
        if found.logits is None:
            return StageResult(free=free)
        return self._answer(batch.rows, found, found.logits, free)

    def _answer(self, rows: Sequence[Row], found: Found, logits: mx.array, free: tuple[int, ...]) -> StageResult:
        begun = time.perf_counter()  # what the runner found is computed
        outputs = [output for row in rows for output in row.outputs]
        drafts = [draft for row in rows for draft in self._contexts[row.seq].list_drafts(row)]
        sound = check_scores(logits)
        mx.async_eval(sound)  # type: ignore[no-untyped-call]  # while the draw runs
        drawn = draw_tokens(self._sampler, logits, outputs, drafts)
        refuse_unsound(sound, [row.seq for row in rows for _ in row.outputs], "the scores")
        answers = make_answers(outputs, drawn, partial(rank_tokens, logits))
        tensors = () if found.states is None else _write_states(outputs, found.states)
        return StageResult(answers, tensors, free, time.perf_counter() - begun)

    def _take_back(self, runner: Runner, marks: Sequence[Mark]) -> None:
        """Restore the sequences, and evaluate them to prove it; if that fails, the stage is lost."""
        self._account.restore(marks)
        try:
            runner.undo()
        except Exception as error:  # noqa: BLE001  # whatever it is, what the sequences hold can no longer be trusted
            self._lose(f"its caches could not be put back after a failed step: {error}")

    def _lose(self, reason: str) -> None:
        self._contexts.clear()
        self._lost = f"the stage is lost: {reason}"


def _write_states(outputs: Sequence[Output], states: mx.array) -> tuple[Tensor, ...]:
    asked = [place for place, output in enumerate(outputs) if isinstance(output, Hidden)]
    return tuple(write_tensor(states[place]) for place in asked)
