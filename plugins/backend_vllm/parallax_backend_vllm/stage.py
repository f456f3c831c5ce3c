"""Implements the stage contract with layers that vLLM computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from parallax_backend_vllm.compat_stage import Found, RunRow, StageWorker
from parallax_backend_vllm.transfer import to_device, to_host
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
from parallax_sampling_torch.outputs import list_outputs
from parallax_sampling_torch.results import compute_result
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.soundness import check_given, check_hidden
from parallax_sampling_torch.tensors import read_tensor, write_tensor

OPEN_AGAIN = "open the stage again"


class VllmStage:
    """See `parallax_core.api.Stage`.

    Core's account has the sequences, their tokens and their pages; vLLM computes rows at the blocks it is given. Page p
    is vLLM's block p + 1, since vLLM keeps block 0 for itself.

    Args:
        info: the properties of the stage.
        worker: the layers, and the KV cache.
    """

    def __init__(self, info: StageInfo, worker: StageWorker) -> None:
        self._account = Account(info)
        self._worker: StageWorker | None = worker
        self._sampler = None if info.gives else Sampler(info.vocab_size, worker.device)
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
        worker = self._get_worker()
        for edit in edits:
            [copies] = self._account.edit(edit)
            if not copies:
                continue
            try:
                worker.copy(_list_blocks(copies))
            except BaseException as error:  # an interrupt too may leave pages half written
                self._lose(f"a page could not be copied: {type(error).__name__}: {error}")
                raise StageLost(self._lost, OPEN_AGAIN) from error

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            BackendFailed: if the computation fails, or an input or result is not finite; all sequences are as before.
            StageLost: if vLLM cannot go on after that.
        """
        worker = self._get_worker()
        check_given(batch)
        restore = self._account.save(batch.rows)
        [copies] = self._account.step(batch)
        if not batch.rows:
            return Outcome(StageResult(free=self._account.free))
        try:
            if copies:
                worker.copy(_list_blocks(copies))
            with torch.inference_mode():
                return Outcome(self._compute(worker, batch))
        except BaseException as error:  # after an interrupt too, the sequences must be unchanged
            self._take_back(worker, batch, restore)
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            reason = str(error).partition("\n")[0]
            hint = "try again; if it happens again, serve fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {reason}", hint) from error

    def close(self) -> None:
        """Release the model and every sequence. A second call does nothing."""
        worker, self._worker = self._worker, None
        self._account, self._sampler = Account(self.info), None
        if worker is not None:
            worker.close()

    def _get_worker(self) -> StageWorker:
        if self._lost:
            raise StageLost(self._lost, OPEN_AGAIN)
        if self._worker is None:
            message = "the stage is closed"
            raise BackendFailed(message, OPEN_AGAIN)
        return self._worker

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"
        with suppress(Exception):  # vLLM may be broken
            self.close()

    def _take_back(self, worker: StageWorker, batch: StageBatch, restore: Callable[[], None]) -> None:
        """Restore all sequences to their state before a failed step, and remove NaN from the pages that it wrote.

        Raises:
            StageLost: if vLLM fails at that too.
        """
        size = self.info.pools[0].page_size
        written = {page for row in batch.rows for page in self._list_pages(row)[row.start // size :]}
        restore()
        try:
            worker.recover([page + 1 for page in sorted(written)])
        except Exception as error:
            self._lose(f"vLLM failed after a failed step: {error}")
            raise StageLost(self._lost, "open the stage again, in a new process") from error

    def _list_pages(self, row: Row) -> Sequence[int]:
        [pool] = self._account.pools
        return pool.pages(row.seq)[1]

    def _compute(self, worker: StageWorker, batch: StageBatch) -> StageResult:
        """Run the rows of a batch, for which pages were taken."""
        found = self._run(worker, batch)
        if self.info.gives:
            check_hidden(found.hidden, batch.rows)
            return StageResult(tensors=(write_tensor(to_host(found.hidden)),), free=self._account.free)
        if not list_outputs(batch):
            return StageResult(free=self._account.free)
        assert self._sampler is not None, "a stage that gives nothing draws"
        picks = [first + output.offset for first, row in _count_tokens(batch.rows) for output in row.outputs]
        states = found.hidden[picks]
        logits = _find_logits(worker, found, batch.rows, states).float()
        result = compute_result(self._sampler, batch, self._account.entries, logits, to_host(states))
        return replace(result, free=self._account.free)

    def _run(self, worker: StageWorker, batch: StageBatch) -> Found:
        """Run the rows, in parts of as many as vLLM takes."""
        entries = self._account.entries
        rows = [
            RunRow(entries[row.seq].tokens, row.start, [page + 1 for page in self._list_pages(row)])
            for row in batch.rows
        ]
        hidden = to_device(read_tensor(batch.hidden[0]), worker.device) if batch.hidden else None
        found, first = [], 0
        for start in range(0, len(rows), worker.most_rows):
            part = rows[start : start + worker.most_rows]
            count = sum(len(row.tokens) - row.start for row in part)
            found.append(worker.run(part, None if hidden is None else hidden[first : first + count]))
            first += count
        if len(found) == 1:
            return found[0]
        logits = [each.last_logits for each in found if each.last_logits is not None]
        return Found(torch.cat([each.hidden for each in found]), torch.cat(logits) if logits else None)


def _list_blocks(copies: Iterable[Copy]) -> list[tuple[int, int]]:
    return [(copy.src + 1, copy.dst + 1) for copy in copies]


def _count_tokens(rows: Iterable[Row]) -> Iterable[tuple[int, Row]]:
    """Yield each row with the number of tokens before it."""
    first = 0
    for row in rows:
        yield first, row
        first += len(row.tokens)


def _find_logits(worker: StageWorker, found: Found, rows: Sequence[Row], states: torch.Tensor) -> torch.Tensor:
    """Return the logits of each output, whose states are ``states``: vLLM has computed those of last tokens."""
    places = [place for place, row in enumerate(rows) for _ in row.outputs]
    are_last = all(output.offset == len(row.tokens) - 1 for row in rows for output in row.outputs)
    if are_last and found.last_logits is not None:
        return found.last_logits if places == list(range(len(rows))) else found.last_logits[places]
    return worker.compute_logits(states)
