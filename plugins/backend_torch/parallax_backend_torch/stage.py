"""Implements the stage contract with the layers of a model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch

from parallax_backend_torch.adapters import AdapterBatch, adding
from parallax_backend_torch.answer import Pending
from parallax_backend_torch.devices import check_device_works, free_memory
from parallax_backend_torch.gpu_claim import GpuClaim
from parallax_backend_torch.graph_replay import Replays
from parallax_backend_torch.kernels.draw import apply_masks
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.network import Runner, RunResult
from parallax_backend_torch.soundness import check_found
from parallax_backend_torch.step import HIDDEN, Carried, Step, make_step
from parallax_backend_torch.step_upload import send_step
from parallax_backend_torch.store import Store
from parallax_core.api import (
    Account,
    BackendFailed,
    Edit,
    Open,
    Outcome,
    StageBatch,
    StageInfo,
    StageLost,
    StageResult,
)
from parallax_sampling_torch.outputs import draw_tokens, find_picks, list_outputs
from parallax_sampling_torch.sampler import Sampler
from parallax_sampling_torch.soundness import check_given
from parallax_sampling_torch.tensors import read_tensor

NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class StageParts:
    """The parts of a stage, released when it is closed."""

    runner: Runner
    store: Store
    factory: LayerFactory
    sampler: Sampler
    replays: Replays | None = None
    """The recorded decode steps; None if they are not recorded."""


class TorchStage:
    """See `parallax_core.api.Stage`.

    Args:
        info: the properties of the stage.
        held: its layers, and the memory of its pools.
    """

    def __init__(self, info: StageInfo, held: StageParts) -> None:
        self._account = Account(info)
        self._held: StageParts | None = held
        self._lost = ""
        self.claim = GpuClaim(str(held.factory.device))
        """The claim on its device, released when it is closed."""
        self.adapters = held.factory.adapters
        """The LoRA adapters of its layers; None: they take none."""
        self._has_adapters = False
        """Whether a sequence with one was opened: steps of all others do not look for any."""
        if self.adapters is not None:
            self.adapters.kept.list_users.append(self._list_adapters)

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._account.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `parallax_core.api.Stage.edit`.

        Raises:
            StageLost: if the cache of a sequence could not be copied.
        """
        held = self._get_held()
        for edit in edits:
            copies = self._account.edit(edit)
            try:
                held.store.copy(copies)
            except BaseException as error:  # an interrupt too may leave pages half written
                self._lose(f"the cache of a sequence could not be copied: {type(error).__name__}: {error}")
                raise StageLost(self._lost, "open the stage again") from error
            if isinstance(edit, Open) and edit.spec.adapter and self.adapters is not None:
                self._has_adapters = True
                self.adapters.load(edit.spec.adapter)

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            BackendFailed: if the computation fails, such as for lack of memory, or an input or result is not finite;
                all sequences are as before.
            StageLost: if the device fails.
        """
        held = self._get_held()
        check_given(batch)
        if not batch.rows:
            self._account.step(batch)
            return Outcome(StageResult(free=self._account.free))
        adapters = self._find_adapters(batch)
        restore = self._account.save(batch.rows)
        copies = self._account.step(batch)
        try:
            with torch.inference_mode(), adding(self.adapters, adapters) if self.adapters and adapters else NOTHING:
                held.store.copy(copies)
                result, step = self._compute(held, batch)
        except BaseException as error:  # after an interrupt too, the sequences must be unchanged
            self._take_back(held, restore)
            if isinstance(error, BackendFailed) or not isinstance(error, Exception):
                raise
            reason = str(error).partition("\n")[0]
            hint = "try again; if it happens again, serve fewer requests at once"
            raise BackendFailed(f"{type(error).__name__}: {reason}", hint) from error
        self._commit(step)
        return Outcome(result)

    def close(self) -> None:
        """Release the model and every sequence. Idempotent."""
        held, self._held = self._held, None
        self._account = Account(self.info)
        if self.adapters is not None and self._list_adapters in self.adapters.kept.list_users:
            self.adapters.kept.list_users.remove(self._list_adapters)
        self.claim.release()
        if held is not None and held.factory.device.type != "cpu":
            device = held.factory.device
            del held
            free_memory(device)

    def _list_adapters(self) -> set[str]:
        """Return the adapters of open sequences."""
        return {entry.spec.adapter for entry in self._account.entries.values()}

    def _find_adapters(self, batch: StageBatch) -> AdapterBatch | None:
        """Return the adapters of the rows; see `AdapterTable.find_batch`."""
        if self.adapters is None or not self._has_adapters:
            return None
        entries = self._account.entries
        rows = [(row.seq, entries[row.seq].spec.adapter, len(row.tokens)) for row in batch.rows if row.seq in entries]
        return self.adapters.find_batch(rows)

    def _get_held(self) -> StageParts:
        if self._lost:
            raise StageLost(self._lost, "open the stage again")
        if self._held is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        return self._held

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"
        with suppress(Exception):  # its device may be broken
            self.close()

    def _take_back(self, held: StageParts, restore: Callable[[], None]) -> None:
        """Restore all sequences to their state before a failed step; its writes are in free pages.

        Raises:
            StageLost: if the device fails: most errors of a device last until the process ends.
        """
        restore()
        if held.factory.device.type == "cpu":
            return
        try:
            free_memory(held.factory.device)
            check_device_works(held.factory.device)
        except Exception as error:
            self._lose(f"its device failed: {error}")
            raise StageLost(self._lost, "open the stage again, in a new process") from error

    def _compute(self, held: StageParts, batch: StageBatch) -> tuple[StageResult, Step | None]:
        """Run the rows of a batch, for which pages were taken; return the step too, unless a recording was replayed."""
        found, step = self._run(held, batch)
        best = check_found(found, batch.rows)
        if found.logits is not None and batch.masks is not None:
            found, best = dataclasses.replace(found, logits=apply_masks(found.logits, batch.masks.wait())), None
        begun = time.perf_counter()  # the results of the layers are computed: `check_found` has read them
        drawn = self._draw(held, batch, found, best)
        result = Pending(found, list_outputs(batch), drawn, self._account.free, self.info.gives).wait()
        return dataclasses.replace(result, sampling_s=time.perf_counter() - begun if result.answers else 0.0), step

    def _commit(self, step: Step | None) -> None:
        """Write the new states after a successful step; a replayed step has no new states."""
        if step is None:
            return
        try:
            with torch.inference_mode():
                step.commit()
        except BaseException as error:
            self._lose(f"the states of sequences could not be written: {type(error).__name__}: {error}")
            raise StageLost(self._lost, "open the stage again") from error

    def _run(self, held: StageParts, batch: StageBatch) -> tuple[RunResult, Step | None]:
        """Return the outputs of the layers, and the step, unless a recording was replayed."""
        device, pools, given = held.factory.device, self._account.pools, self._read_given(held, batch)
        picks = find_picks(batch, device)
        has_adapters = self.adapters is not None and self.adapters.batch is not None
        if held.replays and not has_adapters and (found := held.replays.run(batch.rows, pools, given)) is not None:
            return held.replays.network.finish(found, picks), None
        step = (make_step if device.type == "cpu" else send_step)(batch.rows, pools, held.store)
        return held.runner.run(step, given, picks), step

    def _read_given(self, held: StageParts, batch: StageBatch) -> Carried | None:
        """Return the planes of the previous stage, in the dtype of activations unless theirs is exact."""
        if not batch.hidden:
            return None
        planes = {}
        for spec, tensor in zip(self.info.takes, batch.hidden, strict=True):
            dtype = getattr(torch, spec.dtype) if spec.is_exact else held.factory.dtype
            planes[spec.name] = read_tensor(tensor).to(held.factory.device, dtype)
        return Carried(planes.pop(HIDDEN), planes)

    def _draw(
        self, held: StageParts, batch: StageBatch, found: RunResult, best: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the drawn token ids, None without draws; ``best`` are the tokens of the largest scores, if known."""
        if found.logits is None or not found.logits.numel():
            return None
        return draw_tokens(held.sampler, found.logits, batch, self._account.entries, best)
