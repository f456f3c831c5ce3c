"""Does a request fail while every node of a cluster is restarted, one after the other?

    python -m benchmarks.rolling_restart smollm2-135m --out benchmarks/results/rolling-restart.json

``parallax serve`` serves the model over three ``parallax worker``, as in `FORMATIONS`, while four clients read streams
without a pause, of requests that are greedy or sampled with a seed. In each of five rounds, each worker leaves
(``parallax cluster leave``) and is started again; the next one follows once the cluster is as before.

No request may fail, and every answer must be the one recorded before the first restart. (A batch of other requests may
round differently at a near-tie: such answers are counted as ``different``.) The pause of a restart is the longest wait
for a piece of an answer until the cluster is as before. The clients never repeat a request, except where no node can
take over from the one that leaves: there the server answers new requests with a 503 until the node is back, and they
repeat these, as OpenAI's clients do by themselves.

What a run has found is kept by formation, and not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from benchmarks.record import describe_run, read_report, write_report
from benchmarks.stage_kills import spread
from parallax_core.cli.client import Client

PARALLAX = str(Path(sys.executable).with_name("parallax"))
NODES, CLIENTS = 3, 4
PROMPTS = ("Once upon a time", "def fibonacci(n):", "The capital of France is", "Water boils", "Dear Sir,", "1, 2, 3,")
PATIENCE_S = 180.0
GAP_S = 0.2
"""Shorter waits for a piece of an answer are not recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Formation:
    """How the server uses the nodes."""

    name: str
    options: tuple[str, ...]
    """Of ``parallax serve``."""
    spares: int = 0
    drain: float = 120.0
    retries: int = 0
    """How often a client repeats a request that the server refuses."""


FORMATIONS = (
    Formation(name="2 stages, spare", options=("--layers", "0-15,15-30", "--spares", "1"), spares=1),
    Formation(name="3 replicas", options=("--data-parallel", "3")),
    Formation(name="3 stages", options=("--layers", "0-10,10-20,20-30"), drain=0, retries=60),
)


@dataclass(slots=True)
class Answers:
    """What the clients have read."""

    expected: list[str]
    number: int = 0
    different: int = 0
    errors: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when until when a stream waited for its next piece."""

    def judge(self, index: int, text: str, finish: str | None) -> None:
        """Note the end of a stream."""
        self.number += 1
        self.different += text != self.expected[index]
        if finish not in {"length", "stop"}:
            self.errors.append(f"a stream ended with {finish}")


class Cluster:
    """A server and its workers."""

    def __init__(self, formation: Formation, model: str, private: Path) -> None:
        self._formation = formation
        self._private = private
        self._address = f"ipc://{private}/head"
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        command = [PARALLAX, "serve", model, "--port", "0", "--listen", self._address, "--dtype", "float32"]
        log = (private / "server.log").open("wb")
        self._server = subprocess.Popen([*command, *formation.options], stdout=subprocess.PIPE, stderr=log, text=True)
        self.names = [f"rolling-{os.getpid()}-{number}" for number in range(NODES)]
        self.url = ""

    def start(self) -> None:
        """Start the workers, and wait until the server is ready and the spares are loaded."""
        for name in self.names:
            self._start_worker(name)
        assert self._server.stdout is not None
        self.url = self._server.stdout.readline().split()[1]
        self.wait_whole()

    def restart(self, name: str) -> float:
        """Have a worker leave, start it again, wait until the cluster is as before, and return the seconds to leave."""
        begun = time.monotonic()
        subprocess.run([PARALLAX, "cluster", "leave", name], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)
        left = time.monotonic() - begun
        assert self._workers[name].wait(PATIENCE_S) == 0
        self._start_worker(name)
        self.wait_whole()
        return left

    def wait_whole(self) -> None:
        """Wait until all replicas serve, all spares are loaded, and every node is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_whole():
            assert time.monotonic() < deadline, "the cluster is not as before"
            time.sleep(0.1)

    def stop(self) -> int:
        """End all processes, and return the number of those that did not end by themselves."""
        self._server.terminate()
        for worker in self._workers.values():
            worker.terminate()
        processes: list[subprocess.Popen[Any]] = [self._server, *self._workers.values()]
        return sum(not self._has_ended(process) for process in processes)

    def _start_worker(self, name: str) -> None:
        command = [PARALLAX, "worker", "--connect", self._address, "--node", name, "--backend", "mlx"]
        with (self._private / f"{name}.log").open("ab") as log:
            self._workers[name] = subprocess.Popen([*command, "--drain", str(self._formation.drain)], stderr=log)

    def _is_whole(self) -> bool:
        cluster = Client(self.url).cluster()
        loaded = [node["node"] for node in cluster["waiting"] if node["spare"] and node["spare"]["loaded"]]
        serving = [stage["node"] for replica in cluster["replicas"] for stage in replica["stages"]]
        is_ready = all(replica["status"] == "ready" and not replica["reason"] for replica in cluster["replicas"])
        return is_ready and sorted([*loaded, *serving]) == sorted(self.names)

    def _has_ended(self, process: subprocess.Popen[Any]) -> bool:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            return False
        return True


@contextmanager
def running(formation: Formation, model: str) -> Iterator[Cluster]:
    """Run a cluster; in the end no process may be left."""
    with TemporaryDirectory(prefix="rolling-") as private:
        cluster = Cluster(formation, model, Path(private))
        try:
            cluster.start()
            yield cluster
        finally:
            left = cluster.stop()
        assert not left, f"{left} processes did not end"


def read_stream(
    client: openai.OpenAI, model: str, index: int, gaps: list[tuple[float, float]]
) -> tuple[str, str | None]:
    """Return the text and the finish of a stream."""
    sampling: Any = {"temperature": 0} if index % 2 else {"temperature": 0.9, "top_p": 0.95, "seed": index}
    text, finish, latest = "", None, time.monotonic()
    chunks = client.completions.create(model=model, prompt=PROMPTS[index], max_tokens=64, stream=True, **sampling)
    for chunk in chunks:
        now = time.monotonic()
        if now - latest > GAP_S:
            gaps.append((latest, now))
        latest = now
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
    return text, finish


def work(client: openai.OpenAI, model: str, answers: Answers, is_over: threading.Event) -> None:
    """Read streams until ``is_over``."""
    rng = random.Random(threading.get_ident())  # noqa: S311 -- not to be secret
    while not is_over.is_set():
        index = rng.randrange(len(PROMPTS))
        try:
            answers.judge(index, *read_stream(client, model, index, answers.gaps))
        except openai.APIError as error:
            answers.number += 1
            answers.errors.append(str(error))


def measure(formation: Formation, model: str, rounds: int) -> dict[str, Any]:
    """Restart the nodes of a formation in turn, and return the figures."""
    with (
        running(formation, model) as cluster,
        openai.OpenAI(
            base_url=cluster.url, api_key="none", max_retries=formation.retries, timeout=PATIENCE_S
        ) as client,
    ):
        answers = Answers([read_stream(client, model, index, [])[0] for index in range(len(PROMPTS))])
        is_over = threading.Event()
        clients = [threading.Thread(target=work, args=(client, model, answers, is_over)) for _ in range(CLIENTS)]
        for thread in clients:
            thread.start()
        times, leaving = [], []
        try:
            for number, name in itertools.product(range(rounds), cluster.names):
                begun = time.monotonic()
                leaving.append(cluster.restart(name))
                times.append((begun, time.monotonic()))
                print(formation.name, number, name, round(leaving[-1], 2), answers.number, file=sys.stderr, flush=True)
        finally:
            is_over.set()
            for thread in clients:
                thread.join()
    return {"retries": formation.retries, "drain_s": formation.drain, **summarize(answers, times, leaving)}


def summarize(answers: Answers, times: Sequence[tuple[float, float]], leaving: Sequence[float]) -> dict[str, Any]:
    """Return the number of restarts and requests, and the times in seconds."""
    pauses = [
        max((until - since for since, until in answers.gaps if begun < until and since < ended), default=0.0)
        for begun, ended in times
    ]
    return {
        "restarts": len(times),
        "requests": answers.number,
        "failed": len(answers.errors),
        "different": answers.different,
        "errors": sorted(set(answers.errors)),
        "left_after_s": spread(leaving),
        "whole_after_s": spread([ended - begun for begun, ended in times]),
        "pause_s": spread(pauses),
    }


def main() -> None:
    """Measure what is not measured yet, print, and write the report."""
    names = [formation.name for formation in FORMATIONS]
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", help="the name of a model")
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="FORMATION")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for formation in FORMATIONS:
        if formation.name not in options.only or formation.name in read_report(options.out):
            continue
        found = measure(formation, options.model, options.rounds)
        found |= describe_run(["benchmarks.rolling_restart", options.model], ["pyzmq", "mlx", "openai"])
        print(json.dumps({formation.name: found}, indent=2))
        write_report(options.out, read_report(options.out) | {formation.name: found})
        assert not found["failed"], found["errors"]


if __name__ == "__main__":
    main()
