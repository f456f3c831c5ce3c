"""Measures how busy the stages of a real model are, each in its own process, by their own clocks.

    python -m benchmarks.busy FOLDER --out benchmarks/results/busy.json

Runs 32 concurrent requests, with prompts of different lengths, through one stage process and through two, in turns.
The bubble is the share of the time in which a stage computes nothing, from the result of the first step to that of the
last. On a machine with two cores, two stages compute at the same time only while nothing else runs: the report records
the load beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.api import Request, RequestId, Sampling
from parallax_core.base.files import read_object
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.deploy.executors import RemoteStages
from parallax_core.deploy.stage_options import read_stage_options
from parallax_core.engine.head import Head
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.host import PluginHost

REQUESTS = 32
OUTPUT = 48
TURNS = 3
GOAL = 0.10


class Clocks:
    """Records the compute time that stages report, and when each report arrived."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, float, float]] = []
        """Stage, seconds its step took, and the arrival time of the report."""

    def watch(self) -> None:
        """Record every result that a head confirms from now on."""
        confirm = Head.confirm

        def record(head: Head, stage: int, step: int, free: tuple[int, ...], seconds: float = 0.0) -> None:
            self.reports.append((stage, seconds, time.perf_counter()))
            confirm(head, stage, step, free, seconds)

        Head.confirm = record  # type: ignore[method-assign, assignment]

    def bubble(self, num_stages: int) -> float:
        """Return the share of the time in which stages computed nothing."""
        first, last = self.reports[0][2], self.reports[-1][2]
        busy = sum(seconds for _, seconds, arrived in self.reports if arrived > first)
        return 1 - busy / ((last - first) * num_stages)


CLOCKS = Clocks()


async def measure(folder: Path, backend: str, num_stages: int) -> dict[str, float]:
    """Serve the requests with ``num_stages`` stages, and return the figures."""
    plugins = PluginHost.prepare()
    settings = ServeSettings(backend=backend, transport="zmq", stages=num_stages, dtype="float32")
    stage_options = read_stage_options(settings, plugins)
    with tempfile.TemporaryDirectory(prefix="busy-") as private:
        config = read_object(folder / "config.json")
        plan, offers = StagePlan(model=folder, dtype="float32"), stage_options.choose_offers(config)
        stages = stage_options.make_stages(plan, offers, Path(private))
        assert isinstance(stages, RemoteStages)
        places = stage_options.place_layers(config).replicas[0]
        await stages.registry.start()
        executor = stages.make_executor(0, places, PipelineOptions())
        engine = PipelineEngine(executor, lambda tokens: " word" * len(tokens))
        try:
            await engine.start()
            return await run(engine, num_stages)
        finally:
            await engine.stop()
            await stages.registry.stop()


async def run(engine: PipelineEngine, num_stages: int) -> dict[str, float]:
    """Send all requests at once, and return the figures."""
    CLOCKS.reports.clear()
    begun = time.perf_counter()
    counts = await asyncio.gather(*(ask(engine, number) for number in range(REQUESTS)))
    took = time.perf_counter() - begun
    return {"tokens_per_s": sum(counts) / took, "bubble": CLOCKS.bubble(num_stages), "seconds": took}


async def ask(engine: PipelineEngine, number: int) -> int:
    """Send one request, and return the number of tokens in its answer."""
    prompt = tuple(1000 + (number * 977 + token * 31) % 40000 for token in range(32 + 8 * (number % 9)))
    request = Request(id=RequestId(str(number)), prompt=prompt, max_tokens=OUTPUT, sampling=Sampling(temperature=0))
    return sum([len(delta.tokens) async for delta in engine.submit(request)])


def main() -> None:
    """Measure the turns missing from the report, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="mlx")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    report: dict[str, Any] = read_report(given.out)
    CLOCKS.watch()
    turns = report.setdefault("turns", [])
    command = ["benchmarks.busy", given.folder.name, "--backend", given.backend]
    while len(turns) < TURNS:
        turns.append({str(count): asyncio.run(measure(given.folder, given.backend, count)) for count in (1, 2)})
        print(turns[-1], flush=True)
        report.update(describe_run(command, [f"parallax-backend-{given.backend}"]))
        write_report(given.out, report)
    report["bubble_of_two"] = median(turn["2"]["bubble"] for turn in turns)
    report["goal"] = GOAL
    report["two_beside_one"] = median(turn["2"]["tokens_per_s"] / turn["1"]["tokens_per_s"] for turn in turns)
    print({name: report[name] for name in ("bubble_of_two", "goal", "two_beside_one")})
    write_report(given.out, report)


if __name__ == "__main__":
    main()
