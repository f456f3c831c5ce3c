"""Does a request fail while real machines of a cluster join, leave, die and become slow?

    python -m benchmarks.model_churn --out benchmarks/results/model-churn.json

``parallax run smollm2-135m`` serves over machines that are ``parallax join`` processes on loopback, each with a home of
its own, and with room for about 60 % of the model. While clients read streams of greedy answers without a pause, ten
things happen: a machine joins, leaves (``SIGTERM``), is killed (``SIGKILL``), or becomes slow for good: its process is
stopped for three quarters of the time, in turns of some hundredths of a second. The next thing happens once the cluster
is ready again and has answered; after a machine has become slow, once the coordinator has noticed and planned anew.

No request may fail and every answer must be the one that was recorded before, a batch of other requests may round
differently at a near-tie: such answers are counted as ``different``. In the end all pipelines serve, and no process may
be left over. The clients repeat requests that the server refuses while it has too few machines, as OpenAI's clients do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from benchmarks.processes import is_running, list_processes
from benchmarks.record import describe_run, write_report
from parallax_core.base.errors import ParallaxError
from parallax_core.cli.client import Client
from parallax_core.config.home import models_folder

PARALLAX = str(Path(sys.executable).with_name("parallax"))
MODEL = "smollm2-135m"
ROOM = ("--memory", "0.38")
"""In float32 the model takes 0.54 GB."""
OPTIONS = ("--backend", "mlx", "--dtype", "float32", "--listen", "tcp://127.0.0.1:0", "--port", "0", "--no-local")
CLIENTS = 2
FIRST, MOST = 3, 4
TOKENS = 48
PROMPTS = ("Once upon a time", "The capital of France is", "def fibonacci(n):", "1, 2, 3,")
PATIENCE_S = 240.0
LOOK_S = 0.1
RUN_S, STOPPED_S = 0.01, 0.03
NOTABLE = 2.0
"""How many times slower than before a machine is found to be that was made four times as slow."""
KINDS = ("join", "leave", "kill", "slow")


class Machine:
    """A machine that has joined."""

    def __init__(self, home: Path, code: str) -> None:
        self.home, self.is_slow = home, False
        home.mkdir()
        (home / "models").symlink_to(models_folder())
        command = [PARALLAX, "join", "--backend", "mlx", "--no-api", *ROOM, code]
        with (home / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "PARALLAX_HOME": str(home)})

    def slow_down(self) -> None:
        """Stop its process for three quarters of the time from now on."""
        self.is_slow = True
        threading.Thread(target=self._throttle, daemon=True).start()

    def _throttle(self) -> None:
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            while self.process.poll() is None:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUN_S)


class Cluster:
    """A coordinator and its machines."""

    def __init__(self, private: Path, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._private = private
        self._process = process
        self._code = process.stdout.readline().split()[-1]
        self._numbers = 0
        self.machines: list[Machine] = []
        self.pids: set[int] = set()
        for _ in range(FIRST):
            self.join()
        self.url = process.stdout.readline().split()[1]

    def join(self) -> None:
        """Start a machine."""
        self._numbers += 1
        self.machines.append(Machine(self._private / f"machine-{self._numbers}", self._code))

    def look(self) -> dict[str, Any]:
        """Return the state of the cluster."""
        return Client(self.url).cluster()

    def note_processes(self) -> None:
        """Note all processes that there are, to see in the end that none is left."""
        for machine in self.machines:
            self.pids.update(list_processes(machine.process.pid))

    def strike(self, kind: str, rng: random.Random) -> str:
        """Have something happen, and wait until the cluster has dealt with it; return what."""
        fast = [machine for machine in self.used if not machine.is_slow]
        self.note_processes()
        if kind == "slow" and fast and self.can_spare:
            self.wait_for(self.is_calibrated, "the speed of the machines is not known")
            machine = rng.choice(fast)
            before = self.find_slowdown(machine)
            machine.slow_down()
            self.wait_for(lambda: self.find_slowdown(machine) > NOTABLE * before, "the slow machine is not found")
        elif kind in {"leave", "kill"} and self.can_spare:
            machine = rng.choice(self.machines)
            self.machines.remove(machine)
            machine.process.send_signal(signal.SIGTERM if kind == "leave" else signal.SIGKILL)
            machine.process.wait(PATIENCE_S)
        elif len(self.machines) < MOST:
            kind = "join"
            self.join()
            self.wait_for(lambda: len(self.look()["nodes"]) == len(self.machines), "the machine has not joined")
        else:
            return "nothing"
        return kind

    @property
    def can_spare(self) -> bool:
        """Whether the model fits without one of the machines, two of which hold it."""
        return len(self.machines) >= FIRST

    @property
    def used(self) -> list[Machine]:
        """The machines with layers."""
        pids = {node["pid"] for node in self.look()["nodes"] if node["state"] == "serving"}
        return [machine for machine in self.machines if machine.process.pid in pids]

    def is_calibrated(self) -> bool:
        """Return whether the speed of all machines with layers has been measured."""
        return all(node["slowdown"] != 1 for node in self.look()["nodes"] if node["state"] == "serving")

    def find_slowdown(self, machine: Machine) -> float:
        """Return how many times longer than predicted the steps of a machine take, as the coordinator knows."""
        [found] = [node["slowdown"] for node in self.look()["nodes"] if node["pid"] == machine.process.pid]
        return float(found)

    def is_converged(self) -> bool:
        """Return whether all replicas are ready, as they are planned, and nothing moves."""
        found = self.look()
        served = {(each["rank"], s["node"], *s["layers"]) for each in found["replicas"] for s in each["stages"]}
        planned = {
            (each["rank"], s["node"], *s["layers"]) for each in found["plan"]["replicas"] for s in each["stages"]
        }
        is_ready = all(each["status"] == "ready" for each in found["replicas"])
        return is_ready and served == planned and found["plan"]["move"] is None

    def wait_for(self, condition: Callable[[], bool], complaint: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(ParallaxError, TypeError, KeyError):  # a busy server, or layers that are not known
                if condition():
                    return
            assert time.monotonic() < deadline, complaint
            time.sleep(LOOK_S)


class Readers:
    """Clients that read streams without a pause."""

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=url, api_key="x", max_retries=200, timeout=PATIENCE_S)
        self.expected = [self.read(prompt) for prompt in PROMPTS]
        self.number = self.different = 0
        self.pauses: list[float] = []
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(CLIENTS)]

    def read(self, prompt: str) -> str:
        """Return the answer to a prompt."""
        text, latest, pause = "", time.monotonic(), 0.0
        chunks = self._client.completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
        )
        for chunk in chunks:
            pause, latest = max(pause, time.monotonic() - latest), time.monotonic()
            text += "".join(choice.text for choice in chunk.choices)
        if hasattr(self, "pauses"):
            self.pauses.append(pause)
        return text

    def have_read(self, number: int) -> bool:
        """Return whether so many answers have been read."""
        return self.number >= number

    def _run(self, first: int) -> None:
        index = first
        while not self._is_over.is_set():
            index = (index + 1) % len(PROMPTS)
            try:
                text = self.read(PROMPTS[index])
            except openai.OpenAIError as error:
                self.errors.append(str(error))
            else:
                self.number += 1
                self.different += text != self.expected[index]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have the clients read until the end of the context."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join(PATIENCE_S)


@contextmanager
def running(private: Path) -> Iterator[Cluster]:
    """Run a coordinator and its first machines; in the end all are told to end."""
    home = private / "coordinator"
    home.mkdir()
    (home / "models").symlink_to(models_folder())
    command = [PARALLAX, "run", MODEL, *OPTIONS, "--nodes", str(FIRST)]
    env = {**os.environ, "PARALLAX_HOME": str(home)}
    with ExitStack() as stack:
        log = stack.enter_context((home / "log").open("wb"))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        stack.callback(process.kill)
        cluster = Cluster(private, process)
        try:
            yield cluster
        finally:
            cluster.note_processes()
            cluster.pids.update(list_processes(process.pid))
            for machine in cluster.machines:
                machine.process.terminate()
            process.terminate()
            processes: list[subprocess.Popen[Any]] = [machine.process for machine in cluster.machines]
            for each in [*processes, process]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(20)


def run(times: int, seed: int) -> dict[str, Any]:
    """Have so many things happen, and return the figures."""
    rng = random.Random(seed)  # noqa: S311 -- to be the same every time, not to be secret
    kinds = [KINDS[(number * 3 + 3) % len(KINDS)] for number in range(times)]
    strikes: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    begun = time.monotonic()
    with TemporaryDirectory(prefix="churn-") as private:
        with running(Path(private)) as cluster:
            cluster.wait_for(cluster.is_converged, "the cluster does not get ready")
            readers = Readers(cluster.url)
            with readers.reading():
                for number, kind in enumerate(kinds):
                    at = time.monotonic()
                    found = cluster.strike(kind, rng)
                    cluster.wait_for(cluster.is_converged, "the cluster does not converge")
                    strikes[found] += 1
                    seconds.setdefault(found, []).append(round(time.monotonic() - at, 1))
                    print(number, found, seconds[found][-1], readers.number, file=sys.stderr, flush=True)
                    cluster.wait_for(partial(readers.have_read, readers.number + 2 * CLIENTS), "no answer")
            is_converged = cluster.is_converged()
        left = sum(map(is_running, cluster.pids))
    pauses = sorted(readers.pauses)
    return {
        "strikes": dict(strikes),
        "seconds_until_converged": seconds,
        "requests": readers.number,
        "different": readers.different,
        "seconds": round(time.monotonic() - begun, 1),
        "pause_s": {"median": round(pauses[len(pauses) // 2], 3), "most": round(pauses[-1], 3)},
        "errors": readers.errors[:5],
        "faults": {"errors": len(readers.errors), "not converged": not is_converged, "processes left": left},
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = ["benchmarks.model_churn", "--times", str(options.times), "--seed", str(options.seed)]
    found = run(options.times, options.seed) | describe_run(command, ["mlx", "pyzmq"])
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    assert not any(found["faults"].values())


if __name__ == "__main__":
    main()
