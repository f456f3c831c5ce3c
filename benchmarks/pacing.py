"""Simulates the head with and without the limit on prompts beside answers: even times between tokens, and their price.

    python -m benchmarks.pacing --out benchmarks/results/pacing.json

The head is the one that serves; its stages take times by a formula, on a simulated clock, so that the figures depend on
no machine. ``processor`` has the times that were measured with SmolLM2-135M on torch in float32 on two cores with
AVX-512, ``accelerator`` those of a device whose decodes cost nearly nothing apart. ``steady`` keeps so many requests
running, with prompts of 128 to 384 tokens and answers of 48 to 144; ``burst`` sends 32 at once. ``any`` has no limit,
``even`` is the default; ``itl_ratio`` is the 99th percentile of the time between two tokens divided by the median.
`benchmarks.even_latency` measures the same on real servers.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import describe_run, write_report
from parallax_core.engine.step_cost import StepSize
from tests.unit.engine.timed import Law, TimedPipeline, make_law

GAP_S = 0.1
"""Seconds between the first requests of a steady load."""
SPREAD = 0.5
"""The share by which the lengths of a steady load vary."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """Requests, ``concurrency`` at the same time; 0: all at once."""

    num: int
    concurrency: int = 0
    prompt: int = 256
    output: int = 96


LOADS = {
    "steady 2": Load(16, 2),
    "steady 8": Load(48, 8),
    "steady 32": Load(128, 32),
    "burst 128/128": Load(32, prompt=128, output=128),
    "burst 512/64": Load(32, prompt=512, output=64),
}


def take_accelerator(size: StepSize) -> float:
    """Return the seconds of a step that reads the weights in ten milliseconds, unless it computes for longer."""
    return 0.001 + max(0.01, 1e-4 * (size.num_prompt + size.num_decodes))


DEVICES: dict[str, Law] = {
    "processor": make_law(fixed=9.3e-3, decode_s=1e-3, prompt_s=5e-4, context_s=3e-7),
    "accelerator": take_accelerator,
}


def split(law: Law, num_stages: int) -> list[Law]:
    """Return the laws of equal stages."""
    return [lambda size: law(size) / num_stages] * num_stages


def run_load(pipeline: TimedPipeline, load: Load) -> Figures:
    """Have a pipeline serve a load, and return the figures."""
    chance, left = random.Random(1), load.num
    while left or any(len(times) < wanted for times, wanted in _list_running(pipeline)):
        running = sum(len(times) < wanted for times, wanted in _list_running(pipeline))
        begun = load.num - left
        if left and (not load.concurrency or (running < load.concurrency and pipeline.now >= GAP_S * begun)):
            shares = [chance.uniform(1 - SPREAD, 1 + SPREAD) if load.concurrency else 1.0 for _ in range(2)]
            pipeline.ask(int(load.prompt * shares[0]), int(load.output * shares[1]))
            left -= 1
        elif not pipeline.advance():
            pipeline.now += GAP_S / 100
    return _summarize(pipeline)


def _list_running(pipeline: TimedPipeline) -> list[tuple[list[float], int]]:
    return [(times, pipeline.wanted[request]) for request, times in pipeline.times.items()]


def _summarize(pipeline: TimedPipeline) -> Figures:
    gaps = pipeline.gaps()
    waits = sorted(times[0] - pipeline.arrived[request] for request, times in pipeline.times.items())
    itl, longest = gaps[len(gaps) // 2], gaps[int(0.99 * (len(gaps) - 1))]
    figures = {
        "tokens_per_s": sum(map(len, pipeline.times.values())) / pipeline.now,
        "ttft_ms": 1000 * waits[len(waits) // 2],
        "ttft_p99_ms": 1000 * waits[int(0.99 * (len(waits) - 1))],
        "itl_ms": 1000 * itl,
        "itl_p99_ms": 1000 * longest,
        "itl_ratio": longest / itl,
    }
    return {key: round(value, 2) for key, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Simulate the head with and without the limit on prompts.")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, dict[str, Figures]]] = {}
    for device, law in DEVICES.items():
        for num_stages in (1, 2, 3):
            cases = found[f"{device}, {num_stages} stages"] = {}
            for name, load in LOADS.items():
                any_time = run_load(TimedPipeline(split(law, num_stages), math.inf), load)
                even = run_load(TimedPipeline(split(law, num_stages)), load)
                kept = round(even["tokens_per_s"] / any_time["tokens_per_s"], 3)
                cases[name] = {"any": any_time, "even": even, "ratios": {"tokens_per_s": kept}}
                print(device, num_stages, name, json.dumps(cases[name]), flush=True)
    write_report(options.out, {**describe_run(["benchmarks.pacing"], ["parallax-core"]), "simulated": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
