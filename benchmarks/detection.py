"""How soon is a lost stage noticed, and is one that is only slow taken for lost?

    python -m benchmarks.detection MODEL_FOLDER --out benchmarks/results/detection.json [--rounds 20] [--minutes 20]

``noticed``: a pipeline of three processes that run a toy, linked over TCP with keys. Its second stage is killed
(SIGKILL), stopped (SIGSTOP) or cut off (half-open: a relay between it and the head carries nothing more), each several
times, on a machine that does nothing else, and with every core kept busy by two other processes. Of each, the seconds
until the head says that the stage is lost, and its reason. Beside it, with the event loop of the stage blocked for 5 s:
how often it was lost.

``slow``: the model in two worker processes, on each backend for half of the minutes, asked by clients without a pause
while every core is kept busy: how often a stage was lost. The goal is never.

What a run has found is kept, and not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from benchmarks.record import count_cores, describe_run, read_report, write_report
from benchmarks.workers import PROMPTS, ask, service
from parallax_transport_zmq.keyring import Keyring
from tests.support.process_pipeline import Pipeline, is_alive, serving
from tests.support.zmq_nodes import Wire, stretched

STAGE = 1
NODE = f"worker/{STAGE}"
TIMEOUT_S = 2.5
"""The transport's own, which is the upper bound."""
MEASURED_S = 3.0
"""Seconds of heartbeats before each fault."""
BLOCKED_S = 6.0
"""A little longer than the event loop of a stage is blocked."""
PATIENCE_S = 60.0
FAULTS = ("kill", "stop", "half-open", "blocked loop")
BUSY_SHARE = 0.4
"""The share of the rounds that is made on busy cores, where each takes longer."""
BACKENDS = ("mlx", "torch")
CLIENTS = 4
SPIN = "while True: pass"


@contextmanager
def busy_cores(num_processes: int) -> Iterator[None]:
    """Keep processes running that only compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class Bench:
    """A pipeline whose second stage meets one fault after the other."""

    def __init__(self, pipeline: Pipeline, stack: AsyncExitStack) -> None:
        self._pipeline = pipeline
        self._stack = stack
        self._wire: Wire | None = None

    async def lead(self) -> None:
        """Have the next process of the stage reach the head by a relay that can be cut."""
        self._wire = await self._stack.enter_async_context(stretched(self._pipeline.registry.address))
        self._pipeline.addresses[NODE] = self._wire.address

    async def strike(self, fault: str) -> dict[str, Any]:
        """Do something to the stage; return how soon that was noticed, and wait until all is well again."""
        pipeline, wire = self._pipeline, self._wire
        await pipeline.check()
        await asyncio.sleep(MEASURED_S)
        num_losses, pid = len(pipeline.reasons), pipeline.pids[STAGE]
        assert num_losses == 0 or is_alive(pid)
        await self.lead()  # for the process that follows
        begun = time.monotonic()
        match fault:
            case "kill":
                os.kill(pid, signal.SIGKILL)
            case "stop":
                os.kill(pid, signal.SIGSTOP)
            case "half-open":
                assert wire is not None
                wire.flows.clear()
            case _:
                os.kill(pid, signal.SIGUSR1)
        noticed = await self._wait_loss(num_losses, BLOCKED_S if fault == "blocked loop" else PATIENCE_S)
        await pipeline.until("ready")
        await pipeline.check()
        reasons = pipeline.reasons[num_losses:]
        return {"noticed_s": round(noticed - begun, 3) if noticed else None, "reasons": reasons}

    async def _wait_loss(self, known: int, seconds: float) -> float | None:
        """Return when one more loss was told, or None if there was none in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if len(self._pipeline.reasons) > known:
                return time.monotonic()
            await asyncio.sleep(0.002)
        return None


async def measure_faults(fault: str, rounds: int) -> dict[str, Any]:
    """Return how soon a fault is noticed."""
    found = []
    with TemporaryDirectory() as folder:
        os.environ["PARALLAX_HOME"] = folder
        Keyring(Path(folder) / "keys").make("default")
        pipeline = Pipeline(Path(folder), is_tcp=True, timeout_s=TIMEOUT_S)
        await pipeline.registry.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(pipeline.registry.stop)
            bench = Bench(pipeline, stack)
            await bench.lead()
            await stack.enter_async_context(serving(pipeline))
            for _ in range(rounds):
                found.append(await bench.strike(fault))
                print(fault, found[-1], file=sys.stderr, flush=True)
    return summarize(found, pipeline.reasons)


def summarize(found: Sequence[dict[str, Any]], reasons: Sequence[str]) -> dict[str, Any]:
    """Return the times in order, with those that one asks for, and the reasons with numbers left out."""
    times = sorted(each["noticed_s"] for each in found if each["noticed_s"] is not None)
    numbers = {"p50_s": statistics.median(times), "max_s": times[-1]} if times else {}
    plain = sorted({re.sub(r"\d+(\.\d+)?", "N", reason) for reason in reasons})
    return {"rounds": len(found), "lost": len(times), **numbers, "noticed_s": times, "reasons": plain}


def count_losses(url: str) -> int:
    """Return how often the server has lost a stage."""
    with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=PATIENCE_S) as response:  # noqa: S310 -- our own server
        text = response.read().decode()
    samples = re.findall(r"^parallax_stage_losses_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(value)) for value in samples)


def measure_slow(model: str, backend: str, seconds: float) -> dict[str, Any]:
    """Return how often a stage was lost while every core was busy."""

    def keep_asking(number: int) -> int:
        num_asked = 0
        while time.monotonic() < until:
            ask(url, (PROMPTS[number], {"max_tokens": 64, "temperature": 0}))
            num_asked += 1
        return num_asked

    with service(model, (backend, 2, "ipc")) as url, busy_cores(2 * count_cores()):
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(CLIENTS) as pool:
            num_asked = sum(pool.map(keep_asking, range(CLIENTS)))
        return {"minutes": round(seconds / 60, 2), "requests": num_asked, "lost": count_losses(url)}


def measure(options: argparse.Namespace, report: dict[str, Any]) -> Iterator[None]:
    """Measure what the report lacks, one thing after the other."""
    noticed = report.setdefault("noticed", {})
    for machine, share in (("idle", 1.0), ("busy", BUSY_SHARE)):
        for fault in FAULTS:
            name = f"{fault}, {machine} machine"
            if name not in noticed:
                with busy_cores(2 * count_cores() if machine == "busy" else 0):
                    rounds = max(1, round(share * options.rounds))
                    noticed[name] = asyncio.run(measure_faults(fault, rounds))
                yield
    slow = report.setdefault("slow", {})
    for backend in BACKENDS:
        if backend not in slow:
            slow[backend] = measure_slow(options.model, backend, 60 * options.minutes / len(BACKENDS))
            yield


def main() -> None:
    """Measure what is not known yet, print, and write with what a number needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=20.0)
    options = parser.parse_args()
    report = read_report(options.out)
    for _ in measure(options, report):
        words = [Path(options.model).name, "--rounds", str(options.rounds), "--minutes", f"{options.minutes:g}"]
        run = describe_run(["benchmarks.detection", *words], ["pyzmq", "mlx", "torch"])
        write_report(options.out, report | run)
    for name, each in report["noticed"].items():
        times = f"p50 {each['p50_s']:.3g} s, at most {each['max_s']:.3g} s" if each["lost"] else "never"
        print(f"{name}: noticed {each['lost']} of {each['rounds']} times, {times}")
    for name, each in report["slow"].items():
        print(f"slow {name}: {each['lost']} stages lost in {each['minutes']} minutes, {each['requests']} requests")


if __name__ == "__main__":
    main()
