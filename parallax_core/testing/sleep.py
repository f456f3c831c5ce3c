"""A stage that sleeps instead of computing, to measure where a pipeline spends its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.api import (
    Answer,
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Open,
    Outcome,
    PoolInfo,
    Row,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageOutput,
    StageResult,
    Tensor,
    TensorSpec,
    Truncate,
    check_batch,
    check_edit,
    check_room,
)
from parallax_core.testing.memory import Memory, edit_memories

NUM_LAYERS = 8
HIDDEN = TensorSpec(width=8, dtype="float32")


def describe_sleeper(layers: LayerRange | None = None, num_layers: int = NUM_LAYERS) -> StageInfo:
    """Return the properties of a stage of some or all layers; adapt them with `dataclasses.replace`."""
    layers = LayerRange(0, num_layers) if layers is None else layers
    return StageInfo(
        layers=layers,
        num_layers=num_layers,
        vocab_size=256,
        context_length=4096,
        max_batch_tokens=256,
        pools=(PoolInfo(kind="full", page_size=16, num_pages=1024),),
        device="sleep",
        dtype="float32",
        weight_bytes=0,
        weights_version="1",
        takes=(HIDDEN,) if layers.start else (),
        gives=(HIDDEN,) if layers.stop < num_layers else (),
    )


@dataclass(frozen=True, slots=True)
class SleepOutput:
    """The outcome of a step that is computed while the stage's thread does other things, as on an accelerator."""

    result: StageResult
    until: float
    """The time at which it is computed, by `time.monotonic`."""
    sleep: Callable[[float], None]

    def wait(self) -> StageResult:
        """Sleep for the time that is left, and return the result."""
        self.sleep(max(0.0, self.until - time.monotonic()))
        return self.result


class SleepStage:
    """Sleeps in every step, hands on zeros, and draws the token after the last one; see `parallax_core.api.Stage`.

    It keeps the account of its pages as any stage does, and can do nothing that needs a capability. With
    `StageInfo.steps_ahead` it sleeps as its results are waited for, one step's time after the other's; without, in
    `step`.
    """

    def __init__(
        self,
        info: StageInfo,
        seconds: Callable[[StageBatch], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._info = info
        self._seconds = seconds
        self._sleep = sleep
        self._memories = [Memory(pool, 0) for pool in info.pools]
        self._lengths: dict[SeqId, int] = {}
        self._specs: dict[SeqId, SequenceSpec] = {}
        self._closed = False
        self._busy_until = 0.0

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order; raises as `parallax_core.api.Stage.edit` does, and OutOfPages."""
        self._check_open()
        for edit in edits:
            check_edit(edit, self._specs, [memory.pool for memory in self._memories], self._info)
            edit_memories(self._memories, edit)
            self._account(edit)

    def step(self, batch: StageBatch) -> StageOutput:
        """Sleep now or later, and answer; raises as `parallax_core.api.Stage.step` does, and OutOfPages."""
        self._check_open()
        check_batch(batch, self._lengths, self._info)
        check_room([memory.pool for memory in self._memories], batch.rows)
        seconds = self._seconds(batch)
        if not self._info.steps_ahead:
            self._sleep(seconds)
        for row in batch.rows:
            self._lengths[row.seq] += len(row.tokens)
            for memory in self._memories:
                memory.extend(row)
        free = tuple(memory.pool.num_free for memory in self._memories)
        num_tokens = sum(len(row.tokens) for row in batch.rows)
        tensors = tuple(_make_zeros(spec, num_tokens) for spec in self._info.gives)
        result = StageResult(() if tensors else self._answer(batch.rows), tensors, free)
        if not self._info.steps_ahead:
            return Outcome(result)
        self._busy_until = max(self._busy_until, time.monotonic()) + seconds
        return SleepOutput(result, self._busy_until, self._sleep)

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise BackendFailed("the stage is closed", "open the stage again")

    def _account(self, edit: Edit) -> None:
        match edit:
            case Open(seq, spec):
                self._lengths[seq], self._specs[seq] = 0, spec
            case Fork(src, dst, length, _, spec):
                self._lengths[dst], self._specs[dst] = length, spec or self._specs[src]
            case Truncate(seq, length):
                self._lengths[seq] = length
            case Drop(seq):
                del self._lengths[seq], self._specs[seq]

    def _answer(self, rows: Sequence[Row]) -> tuple[Answer, ...]:
        return tuple(
            Drawn(tuple([(row.tokens[output.offset] + 1) % self._info.vocab_size] * output.count))
            for row in rows
            for output in row.outputs
            if isinstance(output, Draw)  # all are: whatever else there is needs a capability
        )


def _make_zeros(spec: TensorSpec, num_tokens: int) -> Tensor:
    return Tensor(spec.dtype, (num_tokens, *spec.token_shape), bytes(num_tokens * spec.token_bytes))
