"""Implements the stage contract with the layers of a model."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial

from parallax_backend_mlx.adapters import AdapterTable
from parallax_backend_mlx.answer import draw_tokens
from parallax_backend_mlx.drafts import list_drafts
from parallax_backend_mlx.masks import wait_for_masks
from parallax_backend_mlx.ranking import rank_tokens
from parallax_backend_mlx.results import Copies, Runner, RunResult
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_backend_mlx.soundness import check_scores, check_states, refuse_unsound
from parallax_backend_mlx.tensors import read_tensor, write_tensor
from parallax_core.api import (
    Account,
    BackendFailed,
    Drop,
    Edit,
    Hidden,
    Open,
    Outcome,
    Output,
    StageBatch,
    StageInfo,
    StageLost,
    StageResult,
    Tensor,
)
from parallax_stage_tools.ranking import make_answers

WORTH_COLLECTING = 2**24
"""The bytes of weights from which closing a stage looks for reference cycles; that may take half a second."""


class MlxStage:
    """See `parallax_core.api.Stage`.

    Core's account has the tokens and pages of sequences, checks batches and edits, and undoes a failed step. The runner
    has the tensors: it restores states, which every step overwrites, and mlx-lm's own caches after a failed step.

    Args:
        account: the account of the stage's sequences.
        runner: keeps the tensors of the sequences in the pages of ``account``, and runs their rows.
        adapters: the LoRA adapters of its layers; None: they take none.
    """

    def __init__(self, account: Account, runner: Runner, adapters: AdapterTable | None = None) -> None:
        self.account = account
        self._runner: Runner | None = runner
        self._sampler = Sampler(account.info.vocab_size)
        self._lost = ""
        self.adapters = adapters
        if adapters is not None:
            adapters.kept.list_users.append(self._list_adapters)

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self.account.info

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
            copies = self.account.edit(edit)
            try:
                runner.edit(edit, copies)
            except Exception as error:
                self._lose(f"the cache of a sequence could not be copied: {error}")
                raise StageLost(self._lost, "open the stage again") from error
            if isinstance(edit, Open) and edit.spec.adapter and self.adapters is not None:
                self.adapters.load(edit.spec.adapter)
        if any(isinstance(edit, Drop) for edit in edits):
            mx.clear_cache()

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: for a row or batch that is malformed.
            Unsupported: for a request that the stage's capabilities do not include.
            OutOfPages: if the pool has too few free pages.
            BackendFailed: if MLX failed, or an input or result is not finite; the sequences are as before.
            StageLost: if the sequences cannot be restored.
        """
        runner, entries = self._get_runner(), self.account.entries
        if self.adapters is not None:
            self.adapters.begin({row.seq: entries[row.seq].spec.adapter for row in batch.rows if row.seq in entries})
        restore = self.account.save(batch.rows)
        copies = self.account.step(batch)
        if not batch.rows:
            return Outcome(StageResult(free=self.account.free))
        try:
            return Outcome(self._run(runner, batch, copies))
        except BaseException as error:  # after an interrupt too, the sequences must be unchanged
            self._take_back(runner, restore)
            if self._lost:
                raise StageLost(self._lost, "open the stage again") from error
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            hint = "try again; if it happens again, restart with fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {error}", hint) from error

    def close(self) -> None:
        """Release the model and every sequence. Idempotent."""
        self._runner = None
        self.account = Account(self.info)
        if self.adapters is not None and self._list_adapters in self.adapters.kept.list_users:
            self.adapters.kept.list_users.remove(self._list_adapters)
        if self.info.weight_bytes >= WORTH_COLLECTING:
            gc.collect()  # arrays that are part of reference cycles go to MLX's cache, which is returned next
        mx.clear_cache()

    def _list_adapters(self) -> set[str]:
        """Return the adapters of open sequences."""
        return {entry.spec.adapter for entry in self.account.entries.values()}

    def _get_runner(self) -> Runner:
        if self._lost:
            raise StageLost(self._lost, "open the stage again")
        if self._runner is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        return self._runner

    def _run(self, runner: Runner, batch: StageBatch, copies: Copies) -> StageResult:
        hidden = read_tensor(batch.hidden[0]) if batch.hidden else None
        if hidden is not None:
            check_states(hidden, batch.rows, "the hidden states given to this stage")
        found = runner.run(batch.rows, hidden, copies)
        free = self.account.free
        if found.hidden is not None:
            check_states(found.hidden, batch.rows, "the hidden states")
            return StageResult(tensors=(write_tensor(found.hidden),), free=free)
        if found.logits is None:
            return StageResult(free=free)
        return self._answer(batch, found, found.logits, free)

    def _answer(self, batch: StageBatch, found: RunResult, raw: mx.array, free: tuple[int, ...]) -> StageResult:
        rows, logits = batch.rows, wait_for_masks(raw, batch.masks)
        begun = time.perf_counter()  # the runner's results are evaluated
        outputs = [output for row in rows for output in row.outputs]
        drafts = [draft for row in rows for draft in list_drafts(row, self.account.entries[row.seq])]
        sound = check_scores(raw)
        mx.async_eval(sound)  # type: ignore[no-untyped-call]  # while the draw runs
        drawn = draw_tokens(self._sampler, logits, outputs, drafts)
        refuse_unsound(sound, [row.seq for row in rows for _ in row.outputs], "the scores")
        answers = make_answers(outputs, drawn, partial(rank_tokens, logits))
        tensors = () if found.states is None else _write_states(outputs, found.states)
        return StageResult(answers, tensors, free, time.perf_counter() - begun)

    def _take_back(self, runner: Runner, restore: Callable[[], None]) -> None:
        """Restore the sequences, and evaluate them to prove it; if that fails, the stage is lost."""
        restore()
        try:
            runner.undo()
        except Exception as error:  # noqa: BLE001  # after any error the caches cannot be trusted
            self._lose(f"its caches could not be restored after a failed step: {error}")

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"


def _write_states(outputs: Sequence[Output], states: mx.array) -> tuple[Tensor, ...]:
    asked = [place for place, output in enumerate(outputs) if isinstance(output, Hidden)]
    return tuple(write_tensor(states[place]) for place in asked)
