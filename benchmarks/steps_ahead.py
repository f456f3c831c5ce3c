"""Measures the gain on one stage from submitting a step before waiting for the result of the previous one.

    python -m benchmarks.steps_ahead MODEL_FOLDER --out benchmarks/results/steps-ahead.json

One stage runs in a `StageLoop`, as in a server. Three modes take turns: ``one`` step in flight; ``queued``, two in
flight, the second of which waits in the stage's queue; and ``ahead``, two in flight, the second of which is submitted
before waiting for the result of the first (`StageInfo.steps_ahead`). The work is a prompt in chunks, and decodes of two
groups of sequences in turns, with given tokens, since a real decode has to wait for its token. The sleeping stage
imitates an accelerator: in each step its thread is busy for 1 ms, and it computes for 5 ms beside the thread. MLX and
torch compute on the CPU. The figures are the seconds of the best turn of each mode, and the ratio of ``one`` to them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parity import open_backend
from benchmarks.record import describe_run, write_report
from parallax_core.api import (
    Draw,
    Drop,
    Edit,
    Epoch,
    LeaseId,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
    StageOutput,
    StagePlan,
    TransportPlan,
)
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.runtime import StageKey, StageRuntime
from parallax_core.node.worker.thread import StageThread
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.wire.messages import Result, Step

HOST_S, DEVICE_S = 0.001, 0.005
WAYS = {"one": (1, 0), "queued": (2, 0), "ahead": (2, 1)}
"""Steps in flight and steps ahead of each mode."""
GROUP = 4
"""Sequences in a group of decodes."""
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
PLACE = StageKey(LeaseId(0), 0)


class Adjustable:
    """Wraps a stage, and reports an adjustable ``steps_ahead``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.steps_ahead = 0
        self.edit, self.close = stage.edit, stage.close

    @property
    def info(self) -> StageInfo:
        """The description of the wrapped stage, with the adjusted ``steps_ahead``."""
        return replace(self._stage.info, steps_ahead=self.steps_ahead)

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch``."""
        return self._stage.step(batch)


class Accelerator(SleepStage):
    """Keeps its thread busy at the start of each step, as a framework does, and computes beside the thread."""

    def __init__(self) -> None:
        super().__init__(replace(describe_sleeper(), steps_ahead=1), lambda _: DEVICE_S)

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch``."""
        until = time.perf_counter() + HOST_S
        while time.perf_counter() < until:
            pass
        return super().step(batch)


@dataclass(frozen=True)
class Work:
    """The edits before the first step, and the rows of each step."""

    edits: tuple[Edit, ...]
    batches: tuple[tuple[Row, ...], ...]


def make_prompt(length: int, size: int) -> Work:
    """Return the prefill of a prompt of ``length`` tokens, in chunks of ``size``."""
    tokens = [100 + index % 100 for index in range(length)]
    chunks = [(Row(SeqId(0), start, tuple(tokens[start : start + size])),) for start in range(0, length, size)]
    return Work((Open(SeqId(0), SPEC),), tuple(chunks))


def make_decodes(num_steps: int) -> Work:
    """Return ``num_steps`` decodes of each of two groups, in turns."""
    groups = [range(GROUP), range(GROUP, 2 * GROUP)]
    batches = [
        tuple(Row(SeqId(seq), place, (100 + seq,), (Draw(0),)) for seq in group)
        for place in range(num_steps)
        for group in groups
    ]
    return Work(tuple(Open(SeqId(seq), SPEC) for seq in range(2 * GROUP)), tuple(batches))


async def time_work(head: Channel, work: Work, epoch: int, in_flight: int) -> float:
    """Return the seconds from the first step to the last result, with up to ``in_flight`` steps sent ahead."""
    begun = time.perf_counter()
    for number, rows in enumerate(work.batches, 1):
        await head.send(Step(PLACE.lease, Epoch(epoch), number, work.edits if number == 1 else (), rows))
        if number >= in_flight:
            await receive_result(head)
    for _ in range(in_flight - 1):
        await receive_result(head)
    seconds = time.perf_counter() - begun
    drops = tuple(Drop(edit.seq) for edit in work.edits if isinstance(edit, Open))
    await head.send(Step(PLACE.lease, Epoch(epoch), len(work.batches) + 1, drops, ()))
    await receive_result(head)
    return seconds


async def receive_result(head: Channel) -> None:
    """Take the next result."""
    message = await head.receive()
    assert isinstance(message, Result), message


async def measure(open_stage: Callable[[], Stage], works: dict[str, Work], turns: int) -> dict[str, Any]:
    """Return the best seconds of each mode for each work, and its gain over ``one``."""
    node = InProcessTransport(TransportPlan(node="stage", listen="inprocess://", credit=16))
    await node.start()
    far = Channel(await InProcessTransport(TransportPlan(node="head")).connect(node.address, "stage"))
    near, thread = Channel(await node.accept()), StageThread("stage")
    stage = await thread.call(lambda: Adjustable(open_stage()))
    runtime = StageRuntime(lambda: stage, PLACE)
    await thread.call(runtime.open)
    loop = asyncio.create_task(StageLoop(thread, runtime, PLACE, StageChannels(near)).run())
    best: dict[str, dict[str, float]] = {name: {} for name in works}
    epoch = 0
    for turn in range(turns + 1):  # the first one warms up
        for name, work in works.items():
            for way, (in_flight, stage.steps_ahead) in WAYS.items():
                epoch += 1
                seconds = await time_work(far, work, epoch, in_flight)
                best[name][way] = min(seconds, best[name].get(way, seconds)) if turn > 1 else seconds
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await thread.call(runtime.close)
    thread.close()
    await node.stop()
    return {
        name: {way: {"seconds": round(taken, 4), "gain": round(ways["one"] / taken, 3)} for way, taken in ways.items()}
        for name, ways in best.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Measure each stage, print the gains, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the folder of a model")
    parser.add_argument("--stages", nargs="+", default=["sleep", "mlx", "torch"], choices=["sleep", "mlx", "torch"])
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each mode")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a chunk")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    works = {"prompt": make_prompt(given.prompt, given.chunk), "decodes": make_decodes(16)}
    found, plan = {}, StagePlan(model=given.model, memory_fraction=0.05)
    for name in given.stages:
        opener = Accelerator if name == "sleep" else partial(open_backend, name, plan)
        found[name] = asyncio.run(measure(opener, works, given.turns))
        for work, ways in found[name].items():
            shown = ", ".join(
                f"{way} {figures['seconds']:.3f} s = {figures['gain']:.2f}x" for way, figures in ways.items()
            )
            print(f"{name} {work}: {shown}", flush=True)
    run = describe_run(["benchmarks.steps_ahead", given.model.name], ("mlx", "torch"))
    write_report(given.out, {**run, "gains": found})


if __name__ == "__main__":
    main(sys.argv[1:])
