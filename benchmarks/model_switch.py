"""Switches a server between two models twenty times while clients ask for both, on two machines.

    python -m benchmarks.model_switch FOLDER --out benchmarks/results/model-switch.json

FOLDER has a real model; the other one has the same shape and random weights. `parallax run` and one `parallax join`,
each with a home of its own, serve one of them; every switch loads the other one beside it, drains the old one and
unloads it. Four clients send greedy requests for either model at random. Every answer must be the one that the model
gives when it is alone, or an error that says that the model is not loaded; which answers are right is found out first,
with one request at a time.

``rss_mib`` is the memory of all processes of the nodes together: ``idle`` with no model loaded, before the switches and
after them, and ``loaded`` before the switches and after each one to the first model. ``processes left`` counts the
processes of nodes that have ended for the server, but not for the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from benchmarks.processes import is_running, list_processes
from benchmarks.record import describe_run, write_report
from parallax_core.base.errors import ParallaxError
from parallax_core.cli.client import Client

CLIENTS, TOKENS = 4, 16
PROMPTS = ("Once upon a time", "The capital of France", "def main():", "In the year 2050,", "My favourite food is")
PATIENCE_S, LOOK_S, SETTLE_S = 180.0, 0.2, 2.0
UNDER_WAY = {"loading", "draining", "restoring"}
PARALLAX = str(Path(sys.executable).with_name("parallax"))


def write_random(real: Path, folder: Path) -> Path:
    """Write a model of the shape of the one in ``real``, with random weights, and return its folder."""
    folder.mkdir()
    for path in real.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copy(path, folder / path.name)
    draw, tensors = np.random.default_rng(7), {}
    for path in sorted(real.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118 -- it is no mapping
                shape = file.get_slice(name).get_shape()
                is_norm = len(shape) == 1
                values = np.ones(shape) if is_norm else 0.05 * draw.standard_normal(shape, np.float32)
                tensors[name] = values.astype(np.float16)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


class Cluster:
    """A coordinator and a machine that has joined it."""

    def __init__(self, private: Path, real: Path, stack: ExitStack) -> None:
        """Start both, and wait until the model in ``real`` can answer."""
        self.processes: list[subprocess.Popen[str]] = []
        listen = ("--listen", "tcp://127.0.0.1:0", "--port", "0", "--nodes", "2")
        head = stack.enter_context(started(private / "first", "run", str(real), *listen))
        code = read_line(head).split()[2]
        self.processes += [head, stack.enter_context(started(private / "second", "join", code, "--allow-model", "*"))]
        self.client = Client(read_line(head).split()[1])
        self.seen: set[int] = set()

    def change(self, **body: str) -> float:
        """Change the models, and return the seconds that it took."""
        self.client.change_models(body)
        until = time.monotonic() + PATIENCE_S
        while (change := self.client.known_models()["change"])["state"] in UNDER_WAY:
            if time.monotonic() > until:
                raise SystemExit(f"the change does not end: {change}")
            time.sleep(LOOK_S)
        if change["state"] != "done":
            raise SystemExit(f"the change has failed: {change}")
        return float(change["seconds"])

    def measure_rss(self) -> float:
        """Return the memory of the processes of all nodes, in MiB, once those that have ended are gone."""
        time.sleep(SETTLE_S)
        nodes = {node["pid"] for node in self.client.cluster()["nodes"]}
        self.seen |= {each for pid in nodes for each in list_processes(pid)}
        return sum(map(read_rss, {each for pid in nodes for each in list_processes(pid)}))

    def count_left(self) -> int:
        """Return the processes of earlier nodes that have not ended."""
        nodes = {each for node in self.client.cluster()["nodes"] for each in list_processes(node["pid"])}
        return sum(is_running(pid) for pid in self.seen - nodes)


class Clients:
    """Clients that ask for both models at random, and compare the answers."""

    def __init__(self, client: Client, right: Mapping[tuple[str, str], str]) -> None:
        self._client, self._right = client, right
        self._over = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.outcomes["hung"] += sum(thread.is_alive() for thread in self._threads)

    def _work(self, number: int) -> None:
        draw, keys = random.Random(number), sorted(self._right)  # noqa: S311 -- to be the same every time
        while not self._over.is_set():
            model, prompt = draw.choice(keys)
            outcome = self._ask(model, prompt)
            self.outcomes[outcome] += 1
            if outcome == "not loaded":
                time.sleep(0.05)

    def _ask(self, model: str, prompt: str) -> str:
        try:
            status, body = ask(self._client, model, prompt)
        except ParallaxError as error:
            self.errors.append(error.message)
            return "error"
        if status == 503 and body["error"]["code"] == "model_not_loaded":  # noqa: PLR2004 -- the status
            return "not loaded"
        if status != 200:  # noqa: PLR2004 -- the status
            self.errors.append(json.dumps(body)[:300])
            return "error"
        is_right = (body["choices"][0]["text"], body["model"]) == (self._right[model, prompt], model)
        return "right" if is_right else "wrong"


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of Parallax with a home of its own, and end it."""
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARALLAX_")}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [PARALLAX, *arguments, "--backend", "mlx", "--memory", "3"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**kept, "PARALLAX_HOME": str(home)},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process.

    Raises:
        SystemExit: if it has ended.
    """
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise SystemExit("a process has ended before it was ready")


def ask(client: Client, model: str, prompt: str) -> tuple[int, Any]:
    """Return the status and the body of the answer to a greedy request."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    reply = client.send("/completions", body)
    return reply.status, reply.body


def read_rss(pid: int) -> float:
    """Return the memory of a process in MiB; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def run(real: Path, times: int) -> dict[str, Any]:
    """Switch so many times, and return the figures."""
    with TemporaryDirectory(prefix="switch-") as folder, ExitStack() as stack:
        private = Path(folder)
        other = write_random(real, private / "random")
        cluster = Cluster(private, real, stack)
        first, second = real.name, other.name
        right = {(first, prompt): ask(cluster.client, first, prompt)[1]["choices"][0]["text"] for prompt in PROMPTS}
        cluster.change(action="switch", model=str(other))
        right |= {(second, prompt): ask(cluster.client, second, prompt)[1]["choices"][0]["text"] for prompt in PROMPTS}
        cluster.change(action="unload", model=second)
        idle = [cluster.measure_rss()]
        cluster.change(action="load", model=first)
        loaded, took = [cluster.measure_rss()], []
        with Clients(cluster.client, right) as clients:
            for number in range(times):
                took.append(cluster.change(action="switch", model=(first, second)[number % 2 == 0]))
                rss = cluster.measure_rss()
                if number % 2:
                    loaded.append(rss)
                print(
                    number, f"{took[-1]:.1f} s", f"{rss:.0f} MiB", dict(clients.outcomes), file=sys.stderr, flush=True
                )
        cluster.change(action="unload", model=(second, first)[times % 2 == 0])
        idle.append(cluster.measure_rss())
        left, pids = cluster.count_left(), set(cluster.seen)
        for process in cluster.processes:
            pids |= set(list_processes(process.pid))
        stack.close()
        time.sleep(SETTLE_S)
        left += sum(map(is_running, pids))
    outcomes = clients.outcomes
    return {
        "switches": len(took),
        "seconds": {"median": round(sorted(took)[len(took) // 2], 2), "most": round(max(took), 2)},
        "answers": {name: outcomes[name] for name in ("right", "not loaded")},
        "rss_mib": {"idle": [round(each) for each in idle], "loaded": [round(each) for each in loaded]},
        "errors": clients.errors[:5],
        "faults": {**{name: outcomes[name] for name in ("wrong", "error", "hung")}, "processes left": left},
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = ["benchmarks.model_switch", options.folder.name, "--times", str(options.times)]
    figures = run(options.folder, options.times)
    print(json.dumps(figures, indent=2))
    write_report(options.out, {**describe_run(command, ["parallax-core", "mlx"]), **figures})
    if any(figures["faults"].values()):
        raise SystemExit("there were faults")


if __name__ == "__main__":
    main()
