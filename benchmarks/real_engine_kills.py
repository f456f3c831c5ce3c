"""Do requests end, and does the engine come back, when processes of a real engine are killed under load?

    python -m benchmarks.real_engine_kills MODEL_FOLDER --backend sglang --python sglang=PYTHON --out FILE

The engine is a `parallax serve` with HTTP requests; ``--python`` is not needed for an environment that `parallax
engines install` has made. While clients send requests without a pause, one of the processes of the engine, chosen at
random among the worker and all that it has started, is killed (SIGKILL); again once the engine answers. Every request
must end, with an answer or an error, and no process from before a kill may be left. Results are kept by backend.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import is_running, list_processes
from benchmarks.record import describe_run, read_report, write_report
from benchmarks.sides import serve

CLIENTS = 4
TOKENS = 200
PATIENCE_S = 300.0
"""Seconds within which a request must end, and an engine come back."""
ORPHANS_S = 20.0
"""Seconds within which the other processes of a killed engine must have ended."""


class Clients:
    """Clients that send requests over HTTP without a pause."""

    def __init__(self, url: str, model: str) -> None:
        self.ends = Counter[str]()
        """The number of requests by how they ended."""
        self.is_over = False
        self._url, self._model = url, model
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> int:
        """Stop sending, wait for the answers under way, and return the number of clients that got none in time."""
        self.is_over = True
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while not self.is_over:
            self.ends[complete(self._url, self._model, TOKENS)] += 1


def complete(url: str, model: str, tokens: int) -> str:
    """Send a request and return how it ended: ``answered``, or the status of its error."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 -- a server we started
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:  # noqa: S310 -- the same
            json.load(response)
    except urllib.error.HTTPError as error:
        time.sleep(0.1)
        return f"error {error.code}"
    except TimeoutError:
        return "hung"
    return "answered"


def read_replica(url: str) -> dict[str, Any]:
    """Return the status of the engine."""
    with urllib.request.urlopen(f"{url}/v1/cluster") as response:  # noqa: S310 -- a server we started
        [replica] = json.load(response)["replicas"]
    found: dict[str, Any] = replica
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False if it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def is_tracker(pid: int) -> bool:
    """Return whether a process is Python's resource tracker: an engine goes on without it."""
    return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def kill_one(url: str, model: str, rng: random.Random) -> dict[str, Any]:
    """Kill a process of the engine, and return what became of it and of the others."""
    wait_until(lambda: read_replica(url)["running"] >= 1, PATIENCE_S)
    losses = read_replica(url)["losses"]
    processes = list(list_processes(read_replica(url)["stages"][0]["pid"]))
    victim = rng.choice([index for index, pid in enumerate(processes) if not is_tracker(pid)])
    begun = time.monotonic()
    os.kill(processes[victim], signal.SIGKILL)
    is_noticed = wait_until(lambda: bool(read_replica(url)["losses"] > losses), PATIENCE_S)
    is_back = wait_until(lambda: complete(url, model, 2) == "answered", PATIENCE_S)
    seconds = time.monotonic() - begun
    wait_until(lambda: not any(map(is_running, processes)), ORPHANS_S)
    return {
        "killed": f"process {victim + 1} of {len(processes)}",
        "noticed": is_noticed,
        "back": is_back,
        "seconds_to_next_answer": round(seconds, 1),
        "orphans": sum(map(is_running, processes)),
    }


def measure(url: str, model: str, times: int) -> dict[str, Any]:
    """Kill the engine so many times under load; return what became of the requests and the processes."""
    rng = random.Random(0)  # noqa: S311 -- to be the same every time
    clients = Clients(url, model)
    kills = [kill_one(url, model, rng) for _ in range(times)]
    hung = clients.finish()
    ends = dict(clients.ends)
    is_sound = all(each["noticed"] and each["back"] and not each["orphans"] for each in kills)
    passed = is_sound and not hung and not ends.get("hung") and bool(ends.get("answered"))
    return {"requests": ends, "hung_clients": hung, "kills": kills, "passed": passed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Kill processes of a real engine under load.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--backend", required=True, help="the backend whose engine serves the model")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PYTHON", help="as for parallax serve")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend")
    parser.add_argument("--times", type=int, default=5, help="number of kills")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    report, name = read_report(options.out), options.model.name
    command = [str(Path(sys.executable).with_name("parallax")), "serve", str(options.model), "--dtype", "float32"]
    command += ["--backend", options.backend, "--memory-fraction", "0.1"]
    command += [word for python in options.python for word in ("--python", python)]
    command += [word for option in options.option for word in ("--backend-option", option)]
    with serve(command, name, {}, {}) as side:
        found = measure(side.target.url, name, options.times)
    run = describe_run(["benchmarks.real_engine_kills", name, "--backend", options.backend])
    report[options.backend] = run | found
    print(json.dumps(found, indent=2))
    write_report(options.out, report)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
