"""Measures how well a pipeline keeps its stages busy: the time of its steps against that of its slowest stage.

    python -m benchmarks.pipeline --out benchmarks/results/pipeline.json

The three stages only sleep, each on its own thread; head, links and codec are the real ones. N steps cannot take less
than N times the slowest stage; the goal is at most 1.15 times that, filling and draining included. Decodes: many short
requests at once. Prefill: one long prompt, in chunks, several of which are in flight. Idle: stages that take no time,
which leaves the cost of head, links and threads per step.

On a busy machine threads wake up late, which is not a cost of the pipeline. "threads" is the same ratio for three bare
threads that sleep and pass three marks around a ring, measured between the runs: the best this machine could do then.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from parallax_core.api import LayerRange, PoolInfo, Request, RequestId, Sampling, Stage, StageBatch
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.sleep import NUM_LAYERS, SleepStage, describe_sleeper

GOAL = 1.15
EVEN_MS, UNEVEN_MS, IDLE_MS = (20, 20, 20), (10, 30, 20), (0, 0, 0)
CHUNK, CHUNKS = 64, 60
REQUESTS, TOKENS = 24, 40
RUNS = 5


class StageTimer:
    """Counts the steps of a stage, and the seconds it was busy."""

    def __init__(self) -> None:
        self.steps = 0
        self.busy_s = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep, and count the step and its time."""
        begun = time.perf_counter()
        if seconds:
            time.sleep(seconds)
        self.busy_s += time.perf_counter() - begun
        self.steps += 1


def take_time(seconds: float, batch: StageBatch) -> float:
    """Return the seconds that a step takes, which are the same for every batch."""
    del batch
    return seconds


def make_stages(times_ms: Sequence[int], timers: Sequence[StageTimer]) -> list[Callable[[], Stage]]:
    """Return functions that open stages which sleep ``times_ms`` per step, each with its timer."""
    cuts = [NUM_LAYERS * index // len(times_ms) for index in range(len(times_ms) + 1)]
    pools = (PoolInfo(kind="full", page_size=16, num_pages=4096),)
    stages: list[Callable[[], Stage]] = []
    for (start, stop), time_ms, timer in zip(pairwise(cuts), times_ms, timers, strict=True):
        info = describe_sleeper(LayerRange(start, stop))
        info = dataclasses.replace(info, pools=pools, max_batch_tokens=CHUNK)
        stages.append(partial(SleepStage, info, partial(take_time, time_ms / 1000), timer.sleep))
    return stages


def make_requests(count: int, num_prompt: int, num_output: int) -> list[Request]:
    """Return requests whose prompts share no prefix."""
    return [
        Request(
            id=RequestId(str(number)),
            prompt=(number, *(token % 256 for token in range(1, num_prompt))),
            max_tokens=num_output,
            sampling=Sampling(temperature=0),
        )
        for number in range(count)
    ]


async def run_requests(stages: Sequence[Callable[[], Stage]], requests: Sequence[Request]) -> tuple[float, int]:
    """Run the requests at once; return the total seconds and the number of output tokens."""
    engine = PipelineEngine(LocalExecutor(stages), lambda tokens: " word" * len(tokens))
    await engine.start()

    async def read(request: Request) -> int:
        return sum([len(delta.tokens) async for delta in engine.submit(request)])

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(read, requests)))
    seconds = time.perf_counter() - begun
    await engine.stop()
    return seconds, tokens


def measure(what: str, times_ms: Sequence[int], requests: Sequence[Request]) -> dict[str, Any]:
    """Return the fastest of several runs, since other load only adds time, and the ratios of every run."""
    runs = [run_once(what, times_ms, requests) for _ in range(RUNS)]
    best = min(runs, key=lambda run: float(run["ms_per_step"]))
    every = [(run["ratio"], run["threads"]) for run in runs if "ratio" in run]
    return best | {"runs": every}


def time_ring(times_ms: Sequence[int], rounds: int) -> float:
    """Return the seconds that bare threads take to sleep and pass marks around a ring, one thread for each stage."""
    queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in times_ms]

    def work(index: int) -> None:
        for _ in range(rounds):
            mark = queues[index].get()
            time.sleep(times_ms[index] / 1e3)
            queues[(index + 1) % len(queues)].put(mark)

    for mark in range(len(queues)):
        queues[0].put(mark)
    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(queues))]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def run_once(what: str, times_ms: Sequence[int], requests: Sequence[Request]) -> dict[str, Any]:
    """Return the time of the steps, its ratio to the slowest stage, and the share of the time each stage was busy."""
    timers = [StageTimer() for _ in times_ms]
    seconds, tokens = asyncio.run(run_requests(make_stages(times_ms, timers), requests))
    assert tokens == sum(request.max_tokens or 0 for request in requests)
    steps = timers[-1].steps
    found: dict[str, Any] = {
        "what": what,
        "stages_ms": list(times_ms),
        "requests": len(requests),
        "prompt": len(requests[0].prompt),
        "steps": steps,
        "ms_per_step": round(seconds / steps * 1e3, 3),
    }
    if floor := steps * max(times_ms) / 1e3:
        found["ratio"] = round(seconds / floor, 3)
        found["threads"] = round(time_ring(times_ms, steps) / floor, 3)
        found["goal"] = GOAL
        found["busy"] = [round(timer.busy_s / seconds, 3) for timer in timers]
    return found


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    decodes, prompt = make_requests(REQUESTS, 4, TOKENS), make_requests(1, CHUNK * CHUNKS, 1)
    found = {
        "pipelines": [
            measure("decodes", EVEN_MS, decodes),
            measure("decodes", UNEVEN_MS, decodes),
            measure("prefill", EVEN_MS, prompt),
            measure("prefill", UNEVEN_MS, prompt),
            measure("idle", IDLE_MS, decodes),
        ],
        "commit": commit.stdout.strip(),
        "command": "python -m benchmarks.pipeline",
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "load": [round(load, 2) for load in os.getloadavg()],
        },
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
