"""Implements the stage contract with layers that SGLang runs, in the child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from parallax_backend_sglang.compat_stage import Found, LayerRunner, RowSlots
from parallax_core.api import (
    Account,
    BackendFailed,
    Copy,
    Edit,
    Outcome,
    Row,
    StageBatch,
    StageInfo,
    StageLost,
    StageResult,
)
from parallax_sampling_torch.outputs import find_picks, list_outputs
from parallax_sampling_torch.results import compute_result
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.soundness import check_given, check_hidden
from parallax_sampling_torch.tensors import read_tensor, write_tensor

OPEN_AGAIN = "open the stage again"


class SglangStage:
    """See `parallax_core.api.Stage`.

    Core's account has the sequences, their tokens and their pages; SGLang computes rows at the slots it is given. Page
    p is the slots from p * page size + 1 on, since SGLang keeps slot 0 for itself.

    Args:
        info: the properties of the stage; its one pool of pages fits into the slots of ``runner``.
        runner: the layers, and the KV cache.
    """

    def __init__(self, info: StageInfo, runner: LayerRunner) -> None:
        self._account = Account(info)
        self._runner: LayerRunner | None = runner
        self._sampler = None if info.gives else Sampler(info.vocab_size, runner.device)
        self._page = torch.arange(1, info.pools[0].page_size + 1)
        self._lost = ""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._account.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `parallax_core.api.Stage.edit`.

        Raises:
            StageLost: if a page could not be copied.
        """
        runner = self._get_runner()
        for edit in edits:
            [copies] = self._account.edit(edit)
            try:
                self._copy(runner, copies)
            except BaseException as error:  # an interrupt too may leave pages half written
                self._lose(f"a page could not be copied: {type(error).__name__}: {error}")
                raise StageLost(self._lost, OPEN_AGAIN) from error

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            BackendFailed: if the computation fails, or an input or result is not finite; all sequences are as before.
            StageLost: if SGLang cannot go on after that.
        """
        runner = self._get_runner()
        check_given(batch)
        restore = self._account.save(batch.rows)
        [copies] = self._account.step(batch)
        if not batch.rows:
            return Outcome(StageResult(free=self._account.free))
        try:
            self._copy(runner, copies)
            with torch.inference_mode():
                return Outcome(self._compute(runner, batch))
        except BaseException as error:  # after an interrupt too, the sequences must be unchanged
            self._take_back(runner, batch, restore)
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            reason = str(error).partition("\n")[0]
            hint = "try again; if it happens again, serve fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {reason}", hint) from error

    def close(self) -> None:
        """Release the layers and every sequence. A second call does nothing."""
        self._runner = self._sampler = None
        self._account = Account(self.info)

    def _get_runner(self) -> LayerRunner:
        if self._lost:
            raise StageLost(self._lost, OPEN_AGAIN)
        if self._runner is None:
            message = "the stage is closed"
            raise BackendFailed(message, OPEN_AGAIN)
        return self._runner

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"
        with suppress(Exception):  # SGLang may be broken
            self.close()

    def _copy(self, runner: LayerRunner, copies: Sequence[Copy]) -> None:
        """Copy parts of pages."""
        size = self.info.pools[0].page_size
        for each in copies:
            page = self._page[: each.num_slots]
            runner.copy(page + each.src * size, page + each.dst * size)

    def _take_back(self, runner: LayerRunner, batch: StageBatch, restore: Callable[[], None]) -> None:
        """Restore all sequences to their state before a failed step, and clear the slots that it wrote.

        Raises:
            StageLost: if SGLang fails at that too.
        """
        written = torch.cat([row.slots[row.start :] for row in map(self._find_slots, batch.rows)])
        restore()
        try:
            runner.clear(written)
        except Exception as error:
            self._lose(f"SGLang failed after a failed step: {error}")
            raise StageLost(self._lost, OPEN_AGAIN) from error

    def _compute(self, runner: LayerRunner, batch: StageBatch) -> StageResult:
        """Run the rows of a batch, for which pages were taken."""
        found = self._run(runner, batch)
        if self.info.gives:
            check_hidden(found.hidden, batch.rows)
            return StageResult(tensors=(write_tensor(found.hidden),), free=self._account.free)
        if not list_outputs(batch):
            return StageResult(free=self._account.free)
        assert self._sampler is not None, "a stage that gives nothing draws"
        assert found.logits is not None, "the last stage has logits"
        result = compute_result(self._sampler, batch, self._account.entries, found.logits, found.hidden)
        return replace(result, free=self._account.free)

    def _run(self, runner: LayerRunner, batch: StageBatch) -> Found:
        """Run the rows, in parts of as many as SGLang takes."""
        hidden = read_tensor(batch.hidden[0]).to(runner.device, copy=True) if batch.hidden else None
        found, first = list[Found](), 0
        for start in range(0, len(batch.rows), runner.most_rows):
            part = StageBatch(batch.rows[start : start + runner.most_rows])
            tokens = torch.tensor([token for row in part.rows for token in row.tokens])
            given = None if hidden is None else hidden[first : first + len(tokens)]
            rows = [self._find_slots(row) for row in part.rows]
            found.append(runner.run(tokens, rows, given, find_picks(part, runner.device)))
            first += len(tokens)
        if len(found) == 1:
            return found[0]
        logits = [each.logits for each in found if each.logits is not None]
        return Found(torch.cat([each.hidden for each in found]), torch.cat(logits) if logits else None)

    def _find_slots(self, row: Row) -> RowSlots:
        """Return the slots of a row, for which pages were taken."""
        [pool] = self._account.pools
        _, pages = pool.pages(row.seq)
        slots = torch.tensor(pages)[:, None] * pool.info.page_size + self._page
        return RowSlots(row.start, slots.flatten()[: row.start + len(row.tokens)])
