"""Measures how well a pipeline keeps its stages busy: the time of its steps against that of its slowest stage.

    python -m benchmarks.pipeline --out benchmarks/results/pipeline.json

The three stages only sleep, each on its own thread; head, links and codec are the real ones. N steps cannot take less
than N times the slowest stage; the goal is at most 1.15 times that, filling and draining included. Decodes: many short
requests at once. Prefill: one long prompt, in chunks, several of which are in flight. Idle: stages that take no time,
which leaves the cost of head, links and threads per step. On a busy machine threads wake up late, which is not a cost
of the pipeline: the figures are those of the fastest of five runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.record import describe_run, make_parser, write_report
from parallax_core.api import LayerRange, PoolInfo, Request, RequestId, Sampling
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.sleep import NUM_LAYERS, SleepStage, describe_sleeper

GOAL, RUNS = 1.15, 5
EVEN_MS, UNEVEN_MS, IDLE_MS = (20, 20, 20), (10, 30, 20), (0, 0, 0)
CHUNK, CHUNKS = 64, 60
REQUESTS, TOKENS = 24, 40


def make_stage(layers: LayerRange, seconds: float, steps: list[float]) -> SleepStage:
    def sleep(wanted: float) -> None:
        begun = time.perf_counter()
        if wanted:
            time.sleep(wanted)
        steps.append(time.perf_counter() - begun)

    pools = (PoolInfo(kind="full", page_size=16, num_pages=4096),)
    info = dataclasses.replace(describe_sleeper(layers), pools=pools, max_batch_tokens=CHUNK)
    return SleepStage(info, lambda _: seconds, sleep)


def make_requests(count: int, num_prompt: int, num_output: int) -> list[Request]:
    prompts = [(number, *(token % 256 for token in range(1, num_prompt))) for number in range(count)]
    greedy = Sampling(temperature=0)
    return [
        Request(id=RequestId(str(prompt[0])), prompt=prompt, max_tokens=num_output, sampling=greedy)
        for prompt in prompts
    ]


async def run_once(what: str, times_ms: Sequence[int], requests: Sequence[Request]) -> dict[str, Any]:
    """Return the time of the steps, its ratio to the slowest stage, and the share of the time each stage was busy."""
    taken: list[list[float]] = [[] for _ in times_ms]
    cuts = pairwise(NUM_LAYERS * index // len(times_ms) for index in range(len(times_ms) + 1))
    stages = [
        partial(make_stage, LayerRange(*cut), time_ms / 1000, steps)
        for cut, time_ms, steps in zip(cuts, times_ms, taken, strict=True)
    ]
    engine = PipelineEngine(LocalExecutor(stages), lambda tokens: " word" * len(tokens))
    await engine.start()

    async def read(request: Request) -> int:
        return sum([len(delta.tokens) async for delta in engine.submit(request)])

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(read, requests)))
    seconds = time.perf_counter() - begun
    await engine.stop()
    assert tokens == sum(request.max_tokens or 0 for request in requests)
    steps, floor = len(taken[-1]), len(taken[-1]) * max(times_ms) / 1e3
    found: dict[str, Any] = {"what": what, "stages_ms": list(times_ms), "requests": len(requests), "steps": steps}
    found["ms_per_step"] = round(seconds / steps * 1e3, 3)
    if floor:
        busy = [round(sum(each) / seconds, 3) for each in taken]
        found |= {"ratio": round(seconds / floor, 3), "goal": GOAL, "busy": busy}
    return found


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    decodes, prompt = make_requests(REQUESTS, 4, TOKENS), make_requests(1, CHUNK * CHUNKS, 1)
    cases = [("decodes", EVEN_MS, decodes), ("decodes", UNEVEN_MS, decodes), ("prefill", EVEN_MS, prompt)]
    cases += [("prefill", UNEVEN_MS, prompt), ("idle", IDLE_MS, decodes)]
    found = []
    for case in cases:
        runs = [asyncio.run(run_once(*case)) for _ in range(options.runs)]
        found.append(
            min(runs, key=lambda run: float(run["ms_per_step"])) | {"runs": [run.get("ratio") for run in runs]}
        )
        print(found[-1], flush=True)
    write_report(options.out, {"pipelines": found, **describe_run(["benchmarks.pipeline"])})


if __name__ == "__main__":
    main()
