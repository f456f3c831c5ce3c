"""Runs a worker process whose stage fails on command; see `benchmarks.faults`.

    python -m benchmarks.faults.sabotage FOLDER toy PLAN
    python -m benchmarks.faults.sabotage FOLDER model worker --connect ADDRESS ...

The first runs a node of the toy, see `parallax_core.testing.node`; the second runs ``parallax worker``. A file in
FOLDER orders a fault: the caller writes it with `order`, and calls `read_rows` once the file is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from parallax_core.__main__ import main as run_command
from parallax_core.api import (
    BackendFailed,
    BackendSpec,
    Edit,
    LayerRange,
    Row,
    Stage,
    StageBatch,
    StageInfo,
    StageOutput,
    StagePlan,
    StageResult,
    Tensor,
)
from parallax_core.base import log
from parallax_core.base.processes import end_with_parent
from parallax_core.contracts.progress import Progress
from parallax_core.models import stages
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.node import NodePlan, open_toy, serve_head
from parallax_core.wire.membership import Assign

Kind = Literal["event", "kernel", "lock", "memory", "nan", "lost", "pages", "refuse"]
"""The kinds of faults.

========== =========================================================================================
``event``  the step waits for an event that never happens
``kernel`` the compute threads of the step, or the step itself, hang in native code
``lock``   the step hangs in native code that holds the interpreter lock
``memory`` the step raises MemoryError, after computing the layers if the backend is a real one
``nan``    the hidden states of the step's last row are NaN
``lost``   the stage reports that it is lost
``pages``  the stage reports one free page less than it has
``refuse`` the stage cannot be opened
========== =========================================================================================
"""

FAULTS = {"event": Fault("hang"), "lost": Fault("die"), "pages": Fault("free")}
INNER = {"MlxStage": ("_runner", "run"), "TorchStage": ("", "_run")}
"""The attribute of a stage class and its method (or the stage's own) that computes the layers and writes the pages."""


def order(folder: Path, first_layer: int, kind: Kind) -> Path:
    """Order a fault in the next step or the next opening of a stage; return a file that is gone once it happened."""
    path = folder / f"{'open' if kind == 'refuse' else 'step'}-{first_layer}"
    draft = path.with_suffix(".draft")
    draft.write_text(kind)
    return draft.rename(path)


def read_rows(path: Path) -> int:
    return int(path.with_suffix(".rows").read_text())


def take(path: Path, num_rows: int) -> str:
    """Return the ordered kind of fault and delete the order; return an empty string if there is none."""
    if not path.exists():
        return ""
    kind = path.read_text()
    path.with_suffix(".rows").write_text(str(num_rows))
    path.unlink()
    return kind


@dataclass(frozen=True, slots=True)
class PoisonedOutput:
    """The output of a step, with NaN as the hidden states of its last row."""

    output: StageOutput
    rows: tuple[Row, ...]

    def wait(self) -> StageResult:
        result = self.output.wait()
        return replace(result, tensors=tuple(poison(tensor, self.rows) for tensor in result.tensors))


class FailingStage:
    """Wraps a stage, and fails in a step when a file orders it."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self._stage = stage
        self._path = path

    @property
    def info(self) -> StageInfo:
        return self._stage.info

    def edit(self, edits: Sequence[Edit]) -> None:
        self._stage.edit(edits)

    def step(self, batch: StageBatch) -> StageOutput:
        kind = take(self._path, len(batch.rows))
        return self._fail(kind, batch) if kind else self._stage.step(batch)

    def close(self) -> None:
        self._stage.close()

    def _fail(self, kind: str, batch: StageBatch) -> StageOutput:
        if kind in FAULTS:
            return FaultStage(self._stage, FAULTS[kind]).step(batch)
        match kind:
            case "kernel":
                if hold_kernels() == 0:
                    ctypes.CDLL(None).pause()
            case "lock":
                ctypes.PyDLL(None).pause()
            case "memory":
                return self._run_out_of_memory(batch)
            case "nan":
                return self._step_poisoned(batch)
        return self._stage.step(batch)

    def _run_out_of_memory(self, batch: StageBatch) -> StageOutput:
        error = MemoryError("out of memory on purpose")
        if (inner := INNER.get(type(self._stage).__name__)) is None:
            raise error
        owner, method = inner
        fail_after(getattr(self._stage, owner) if owner else self._stage, method, error)
        return self._stage.step(batch)

    def _step_poisoned(self, batch: StageBatch) -> StageOutput:
        dtypes = {spec.dtype for spec in (*self.info.takes, *self.info.gives)}
        if dtypes <= {"int64"}:  # the toy has no NaN
            raise BackendFailed("not finite on purpose", "", (batch.rows[-1].seq,))
        if batch.hidden:
            return self._stage.step(replace(batch, hidden=tuple(poison(each, batch.rows) for each in batch.hidden)))
        return PoisonedOutput(self._stage.step(batch), batch.rows)


def poison(tensor: Tensor, rows: Sequence[Row]) -> Tensor:
    data = bytearray(memoryview(tensor.data).cast("B"))
    start = len(data) // tensor.shape[0] * (tensor.shape[0] - len(rows[-1].tokens))
    data[start:] = b"\xff" * (len(data) - start)
    return replace(tensor, data=bytes(data))


def fail_after(owner: Any, name: str, error: Exception) -> None:
    method = getattr(owner, name)

    def call(*args: object) -> NoReturn:
        delattr(owner, name)
        method(*args)
        raise error

    setattr(owner, name, call)


def hold_kernels() -> int:
    """Hang all compute threads forever, and return their number; 0 on systems other than Linux.

    These are the threads that neither Python nor ZeroMQ has started. Each gets a signal whose handler never returns.
    """
    tasks = Path("/proc/self/task")
    known = {thread.native_id for thread in threading.enumerate()}
    names = {int(path.name): (path / "comm").read_text() for path in tasks.glob("*")}
    found = [thread for thread, name in names.items() if thread not in known and not name.startswith("ZMQ")]
    if found:
        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGUSR1, ctypes.cast(libc.pause, ctypes.c_void_p))
        for thread in found:
            libc.tgkill(os.getpid(), thread, signal.SIGUSR1)
    return len(found)


def open_stage(folder: Path, layers: LayerRange | None, open_wrapped: Callable[[], Stage]) -> Stage:
    """Open a stage that fails when a file in ``folder`` orders it; fail to open it if that is ordered."""
    first = layers.start if layers else 0
    if take(folder / f"open-{first}", 0):
        raise BackendFailed("out of memory for the stage, on purpose")
    return FailingStage(open_wrapped(), folder / f"step-{first}")


def run_toy(folder: Path, plan: NodePlan) -> None:
    def open_layers(assign: Assign, progress: Progress) -> Stage:
        return open_stage(folder, LayerRange(assign.start, assign.stop), lambda: open_toy(assign, progress))

    end_with_parent()
    log.configure(verbose=False, node=plan.node)
    asyncio.run(serve_head(plan, open_layers))


def run_worker(folder: Path, words: Sequence[str]) -> None:
    open_wrapped = stages.open_stage

    def open_planned(host: PluginHost, offer: Offer[BackendSpec], plan: StagePlan) -> Stage:
        return open_stage(folder, plan.layers, lambda: open_wrapped(host, offer, plan))

    stages.open_stage = open_planned  # before the command imports it
    sys.argv = ["parallax", *words]
    run_command()


def main() -> None:
    """Run the process that the command line names."""
    folder, kind, *words = sys.argv[1:]
    if kind == "toy":
        run_toy(Path(folder), msgspec.json.decode(words[0].encode(), type=NodePlan))
    else:
        run_worker(Path(folder), words)


if __name__ == "__main__":
    main()
