"""Does a server stay healthy while a worker is killed every 15 seconds, for 20 minutes at full load?

    python -m benchmarks.soak --out benchmarks/results/soak.json

Pipelines of toy worker processes, as in `benchmarks.stage_kills`: two replicas of two stages, with a spare for each
stage. Sixteen clients read streams without a pause. A part without faults (two minutes) is followed by four parts of
five minutes in which a worker chosen at random is killed (SIGKILL), or every third time stopped (SIGSTOP), every 15
seconds.

Every stream must end with the right tokens. After each part every page must be free, and in the end no process may
be left. The memory of this process, which runs the heads, is sampled every five seconds; it must be flat: the median of
the last part may exceed that of the part without faults by 10 %. The throughput is given beside that of the part
without faults.

Each part is written to the report when it ends; a run that was ended continues with the next part, in a new process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from benchmarks.stage_kills import Clients, Fleet, Formation, exists, judge, now, running

FORMATION = Formation(name="2 stages, 2 replicas, spare each", sizes=(2, 3), replicas=2, spares=2)
CLIENTS = 16
EVERY_S = 15.0
"""Seconds from one fault to the next."""
SAMPLE_S = 5.0
PARTS = 4
MOST_GROWTH = 1.1
PATIENCE_S = 60.0


def read_memory() -> int:
    """Return the bytes of memory that this process has resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Soak:
    """A fleet and its clients."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._random = rng
        self._clients = Clients(fleet.router, rng, 180)
        self._rights: list[list[int]] = []

    async def warm_up(self) -> None:
        """Read every request once, without other requests."""
        self._rights = await self._clients.read_all()

    async def run(self, seconds: float, *, is_undisturbed: bool) -> dict[str, Any]:
        """Serve for a time, with faults or without, until all is idle; return the figures."""
        clients, fleet = self._clients, self._fleet
        clients.answers, clients.is_over, fleet.faults = [], False, []
        begun, memory, due = now(), [read_memory()], EVERY_S
        working = [asyncio.create_task(clients.work()) for _ in range(CLIENTS)]
        while (left := begun + seconds - now()) > 0:
            await asyncio.sleep(min(left, SAMPLE_S))
            memory.append(read_memory())
            if not is_undisturbed and now() - begun > due:
                due += EVERY_S
                print(await fleet.hit(self._random), len(clients.answers), file=sys.stderr, flush=True)
        took, tokens = now() - begun, sum(len(answer.tokens) for answer in clients.answers)
        clients.is_over = True
        _, hung = await asyncio.wait(working, timeout=PATIENCE_S)
        return {
            "seconds": round(took, 1),
            "tokens_per_s": round(tokens / took, 1),
            "memory_mb": [round(each / 1e6, 1) for each in memory],
            **judge(clients.answers, self._rights, fleet.faults),
            "hung": len(hung),
            "pages_used": await fleet.count_used(),
        }


async def measure(private: Path, options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Run the parts that ``report`` does not have, and save each."""
    fleet = Fleet(FORMATION, Path(), private)
    async with running(fleet):
        soak = Soak(fleet, random.Random())  # noqa: S311 -- not to be secret
        await soak.warm_up()
        for number in range(PARTS + 1):
            name = f"part {number}" if number else "undisturbed"
            if name not in report:
                seconds = options.minutes * 60 / PARTS if number else options.undisturbed * 60
                report[name] = await soak.run(seconds, is_undisturbed=not number)
                report |= describe_run(["benchmarks.soak"], ["pyzmq"])
                write_report(options.out, report)
                print(name, json.dumps(report[name]), flush=True)
    report["processes_left"] = report.get("processes_left", 0) + sum(map(exists, fleet.pids))


def summarize(report: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of all parts with faults beside those of the part without."""
    calm, parts = report["undisturbed"], [report[f"part {number + 1}"] for number in range(PARTS)]
    speed = sum(part["tokens_per_s"] * part["seconds"] for part in parts) / sum(part["seconds"] for part in parts)
    names = ("streams", "lost", "different", "hung", "pages_used")
    return {
        **{name: sum(part[name] for part in (calm, *parts)) for name in names},
        "faults": sum(fault["number"] for part in parts for fault in part["faults"].values()),
        "throughput_ratio": round(speed / calm["tokens_per_s"], 3),
        "memory_ratio": round(median(parts[-1]["memory_mb"]) / median(calm["memory_mb"]), 3),
    }


def main() -> None:
    """Run, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="with faults")
    parser.add_argument("--undisturbed", type=float, default=2.0, metavar="MINUTES", help="without, before them")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(message)s")
    report = read_report(options.out)
    with TemporaryDirectory(prefix="soak-") as private:
        asyncio.run(measure(Path(private), options, report))
    report["summary"] = found = summarize(report)
    print(json.dumps(found, indent=2))
    write_report(options.out, report)
    assert not found["lost"] + found["different"] + found["hung"] + found["pages_used"] + report["processes_left"]
    assert found["memory_ratio"] < MOST_GROWTH, "memory grew"


if __name__ == "__main__":
    main()
