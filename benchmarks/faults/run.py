"""The options of a run of a scenario, and its report, which is written after each part."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import describe_run, find_model, read_report, write_report

Figures = dict[str, Any]
"""What a part has found; under ``faults`` it counts what must not be."""


class Run:
    """A scenario, its options and its report."""

    def __init__(self, scenario: str, options: argparse.Namespace) -> None:
        self.scenario, self.options = scenario, options
        self.report = read_report(options.out)
        self.failed: list[str] = []
        """What must not be, by part."""

    @cached_property
    def model(self) -> Path:
        return self.options.model or find_model()

    @property
    def seed(self) -> int:
        return int(self.options.seed)

    def times(self, default: int) -> int:
        return int(self.options.times or default)

    def seconds(self, default: float) -> float:
        return 60 * float(self.options.minutes) if self.options.minutes else default

    def part(self, name: str, measure: Callable[[], Figures]) -> None:
        if name in self.report or (self.options.only and not any(each in name for each in self.options.only)):
            return
        begun = time.monotonic()
        found = measure()
        found["seconds"] = round(time.monotonic() - begun, 1)
        words = ["benchmarks.faults", *(Path(word).name if os.sep in word else word for word in sys.argv[1:])]
        self.report[name] = found | describe_run(words, ["pyzmq", "mlx", "torch"])
        print(name, json.dumps(found, indent=2), flush=True)
        write_report(self.options.out, self.report)
        self.failed += [f"{name}: {what}: {count}" for what, count in found.get("faults", {}).items() if count]


def spread(seconds: Iterable[float]) -> dict[str, float]:
    kept = sorted(seconds)
    if not kept:
        return {"number": 0}
    p95 = kept[round(0.95 * (len(kept) - 1))]
    return {"number": len(kept), "p50": round(median(kept), 3), "p95": round(p95, 3), "max": round(kept[-1], 3)}


def longest_pauses(times: Sequence[float], gaps: Sequence[tuple[float, float]]) -> list[float]:
    """Return the longest wait because of each thing that happened: one that it came within, before the next one.

    Args:
        times: when things happened or were noticed, in order.
        gaps: from when until when clients waited.
    """
    ends = [*times[1:], float("inf")][: len(times)]
    return [
        max((until - since for since, until in gaps if since < at < until and since < end), default=0.0)
        for at, end in zip(times, ends, strict=True)
    ]


def wait_until(condition: Callable[[], bool], seconds: float, complaint: str = "") -> bool:
    """Wait until a condition holds; return whether it does.

    Raises:
        TimeoutError: if it does not in time, and there is a complaint.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            if complaint:
                raise TimeoutError(complaint)
            return False
        time.sleep(0.1)
    return True


@contextmanager
def private_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="plx-") as name:
        yield Path(name)


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)
