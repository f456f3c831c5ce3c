"""Compares the default limit on prompts beside running answers with none: even times between tokens, and their price.

    python -m benchmarks.even_latency MODEL_FOLDER --out benchmarks/results/even-latency.json

Two servers, ``any`` with ``--target-itl 0`` and ``even`` with the default, get the same requests in turns. Each keeps
2, 8 or 32 requests running, whose prompts (128 to 384 words) arrive while others decode (48 to 144 tokens); in the load
``1``, prompts arrive beside a single answer. Figures are medians over the turns; ``itl_ratio`` is the 99th percentile
of the time between two tokens divided by the median; a ratio of the two servers above 1 means that ``even`` is better.
Parts already in the report are not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import describe_run, read_report, write_report
from benchmarks.sides import Figures, HttpSide, serve
from parallax_bench.client import send_requests
from parallax_bench.dataset import Sizes, make_random
from parallax_bench.request import BenchRequest, BenchResult
from parallax_bench.summary import summarize

TURNS = 2
SIDES = {"any": ["--set", "target_itl=0"], "even": []}
SETUPS = {
    "torch": ["--backend", "torch"],
    "mlx": ["--backend", "mlx", "--dtype", "float32"],
    "torch-2": ["--backend", "torch", "--stages", "2"],
    "torch-3": ["--backend", "torch", "--stages", "3"],
}
NO_END = {"2": -100}
"""A bias against the token that ends an answer: pieces of text without one would look like long gaps."""
VERSIONS = ("torch", "mlx", "mlx-lm", "parallax-core")


@dataclass(frozen=True)
class Load:
    """Requests of random words, ``concurrency`` at the same time, sent one after another at first."""

    concurrency: int
    num: int
    gap_s: float = 0.1

    def make_tasks(self, seed: int) -> list[BenchRequest]:
        """Return the requests; in the load of a single answer, that one first."""
        tasks = make_random(self.num, Sizes(input_len=256, output_len=96, spread=0.5), seed)
        if self.concurrency == 1:
            long = make_random(1, Sizes(input_len=16, output_len=400), seed)
            tasks = [*long, *make_random(self.num, Sizes(input_len=256, output_len=1, spread=0.5), seed)]
        return [BenchRequest(route=each.route, body={**each.body, "logit_bias": NO_END}) for each in tasks]


LOADS = {"1": Load(1, 8, 0.5), "2": Load(2, 8), "8": Load(8, 24), "32": Load(32, 64)}


def measure(side: HttpSide, load: Load, seed: int) -> Figures:
    """Send the requests of a load, and return the figures."""
    tasks = load.make_tasks(seed)
    gaps = [0.0, *([load.gap_s] * (len(tasks) - 1))]
    room = load.concurrency if load.concurrency > 1 else 0
    outcomes = asyncio.run(send_requests(side.target, tasks, gaps, room, lambda _: None))
    return summarize_load(outcomes, outcomes[:1] if load.concurrency == 1 else outcomes)


def summarize_load(outcomes: Sequence[BenchResult], answers: Sequence[BenchResult]) -> Figures:
    """Return the figures of all requests; the times between tokens are those of ``answers``."""
    found, answered = summarize(outcomes, {}), summarize(answers, {})
    if found.errors or found.ttft_ms is None or answered.itl_ms is None:
        raise RuntimeError(str(found.errors))
    itl = answered.itl_ms
    return {
        "tokens_per_s": found.total_tokens_per_s,
        "ttft_ms": found.ttft_ms.p50,
        "ttft_p99_ms": found.ttft_ms.p99,
        "e2e_ms": found.e2e_ms.p50 if found.e2e_ms else 0.0,
        "itl_ms": itl.p50,
        "itl_p99_ms": itl.p99,
        "itl_ratio": itl.p99 / itl.p50,
    }


@contextlib.contextmanager
def open_side(model: Path, setup: str, side: str) -> Iterator[HttpSide]:
    """Run a server, and warm it up."""
    command = [sys.executable, "-m", "parallax_core", "serve", str(model), *SETUPS[setup], *SIDES[side]]
    with serve(command, model.name, {}, {}) as opened:
        measure(opened, Load(2, 4), 1)
        yield opened


def run_setup(model: Path, setup: str, loads: Sequence[str], turns: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Measure both sides under each load, in turns; yield the load and its report."""
    found: dict[str, dict[str, list[Figures]]] = {name: {side: [] for side in SIDES} for name in loads}
    for turn in range(turns):
        for side in SIDES:
            with open_side(model, setup, side) as opened:
                for name in loads:
                    figures = measure(opened, LOADS[name], 1000 * turn + LOADS[name].concurrency)
                    found[name][side].append({key: round(value, 3) for key, value in figures.items()})
                    print(f"{setup} {name} {side}: {found[name][side][-1]}", flush=True)
    for name, sides in found.items():
        yield name, judge(sides)


def judge(sides: dict[str, list[Figures]]) -> dict[str, object]:
    """Return the medians, the ratios and the figures of every turn."""
    medians = {
        side: {key: round(statistics.median(turn[key] for turn in turns), 3) for key in turns[0]}
        for side, turns in sides.items()
    }
    before, even = medians["any"], medians["even"]
    ratios = {
        key: round(even[key] / before[key] if key.endswith("per_s") else before[key] / even[key], 3) for key in even
    }
    return {"medians": medians, "ratios": ratios, "turns": sides}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts missing from the report, print, and write it; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure how even the times between tokens are.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS), help="run only these")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS), help="run only these")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    report = read_report(options.out) or {"setups": {}}
    for setup in options.setups:
        done = report["setups"].setdefault(setup, {})
        missing = [name for name in options.loads if name not in done]
        for name, figures in run_setup(options.model, setup, missing, options.turns):
            done[name] = figures
            even = figures["medians"]["even"]  # type: ignore[index]
            print(f"{setup} {name}: p99 {even['itl_ratio']:.2f} x the median; ratios {figures['ratios']}", flush=True)
        about = describe_run(["benchmarks.even_latency", options.model.name], VERSIONS)
        report = {**about, "setups": report["setups"]}
        write_report(options.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
