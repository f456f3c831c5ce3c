"""Scenarios of servers and machines that are commands on loopback: restarts of workers, and switches of models."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.readers import Readers, make_questions
from benchmarks.faults.run import Figures, Run, longest_pauses, private_folder, say, spread, wait_until
from benchmarks.processes import is_running, list_processes, read_resident
from benchmarks.servers import PATIENCE_S, cluster, fetch, parallax, read_ready, running
from tests.e2e.tiny import write_tiny
from tests.support.namespaces import Process

UNDER_WAY = {"loading", "draining", "restoring"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarted:
    """How a server uses three workers that restart."""

    options: tuple[str, ...]
    """Of ``parallax serve``."""
    drain: float = 120.0
    can_take_over: bool = True
    """Whether other nodes serve meanwhile, so that nothing may be refused."""


FORMATIONS = {
    "2 stages, spare": Restarted(options=("--layers", "0-15,15-30", "--spares", "1")),
    "3 replicas": Restarted(options=("--data-parallel", "3")),
    "3 stages": Restarted(options=("--layers", "0-10,10-20,20-30"), drain=0, can_take_over=False),
}


class Workers:
    """A server and its workers."""

    def __init__(self, formation: Restarted, model: str, private: Path, stack: ExitStack) -> None:
        self._formation, self._stack = formation, stack
        self._address = f"ipc://{private}/head"
        self.names = [f"rolling-{os.getpid()}-{number}" for number in range(3)]
        command = parallax("serve", model, "--port", "0", "--listen", self._address, "--dtype", "float32")
        server = stack.enter_context(running([*command, *formation.options]))
        self._workers = {name: self._start(name) for name in self.names}
        self.url, self.model = read_ready(server)
        self.wait_whole()

    def restart(self, name: str) -> float:
        """Have a worker leave, start it again, wait until all is as before, and return the seconds to leave."""
        begun = time.monotonic()
        subprocess.run(parallax("cluster", "leave", name), check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)
        left = time.monotonic() - begun
        assert self._workers[name].popen.wait(PATIENCE_S) == 0
        self._workers[name] = self._start(name)
        self.wait_whole()
        return left

    def wait_whole(self) -> None:
        """Wait until all replicas serve, all spares are loaded, and every node is there."""
        wait_until(self._is_whole, PATIENCE_S, "the cluster is not as before")

    def _start(self, name: str) -> Process:
        words = ("--connect", self._address, "--node", name, "--backend", "mlx", "--drain", str(self._formation.drain))
        return self._stack.enter_context(running(parallax("worker", *words)))

    def _is_whole(self) -> bool:
        found = cluster(self.url)
        loaded = [node["node"] for node in found["waiting"] if node["spare"] and node["spare"]["loaded"]]
        serving = [stage["node"] for replica in found["replicas"] for stage in replica["stages"]]
        is_ready = all(replica["status"] == "ready" and not replica["reason"] for replica in found["replicas"])
        return is_ready and sorted([*loaded, *serving]) == sorted(self.names)


def measure_restarts(formation: Restarted, model: str, rounds: int) -> Figures:
    with private_folder() as private, ExitStack() as stack:
        workers = Workers(formation, model, private, stack)
        readers = Readers(workers.url, make_questions(workers.model, 64, 6), 4)
        readers.learn()
        readers.start()
        begun, leaving, whole = list[float](), list[float](), list[float]()
        for name in workers.names * rounds:
            begun.append(time.monotonic())
            leaving.append(workers.restart(name))
            whole.append(time.monotonic() - begun[-1])
            say(name, round(leaving[-1], 2), len(readers.streams))
        found = readers.finish()
    lost = {name: found[name] for name in ("hung", "lost", "error")}
    times = {"left_after_s": leaving, "whole_after_s": whole, "pause_s": longest_pauses(begun, readers.gaps)}
    refused = found["refused"] if formation.can_take_over else 0
    return found | {key: spread(each) for key, each in times.items()} | {"faults": lost | {"refused": refused}}


def rolling(run: Run) -> None:
    """Have each of three workers leave and come back, five times, while four clients read streams."""
    for name, formation in FORMATIONS.items():
        run.part(name, lambda: measure_restarts(formation, str(run.model), run.times(5)))


class Switched:
    """A server and a machine that has joined it, which hold one of two models."""

    def __init__(self, private: Path, real: Path, stack: ExitStack) -> None:
        common = ("--backend", "mlx", "--memory", "3")
        homes = [private / "first", private / "second"]
        for home in homes:
            home.mkdir()
        words = ("run", str(real), "--listen", "tcp://127.0.0.1:0", "--port", "0", "--nodes", "2", *common)
        head = stack.enter_context(running(parallax(*words), homes[0]))
        code = head.await_line("parallax join ")[1].split()[2]
        stack.enter_context(running(parallax("join", code, "--allow-model", "*", *common), homes[1]))
        self.url, self.head = read_ready(head)[0], head
        self.seen: set[int] = set()

    def change(self, **body: str) -> float:
        fetch(f"{self.url}/cluster/models", body)
        wait_until(lambda: self._look()["state"] not in UNDER_WAY, PATIENCE_S, "the change does not end")
        change = self._look()
        assert change["state"] == "done", change
        return float(change["seconds"])

    def measure_rss(self) -> float:
        """Return the memory of the processes of all nodes, in MiB, once those that have ended are gone."""
        time.sleep(2.0)
        pids = {each for node in cluster(self.url)["nodes"] for each in list_processes(node["pid"])}
        self.seen |= pids
        return round(sum(map(read_resident, pids)) / 2**20)

    def _look(self) -> dict[str, Any]:
        found: dict[str, Any] = fetch(f"{self.url}/cluster/models")["change"]
        return found


def measure_switches(real: Path, times: int) -> Figures:
    with private_folder() as private, ExitStack() as stack:
        other = write_tiny(private / "random", real)
        switched, took = Switched(private, real, stack), list[float]()
        questions = [*make_questions(real.name, 16, 5), *make_questions(other.name, 16, 5)]
        readers = Readers(switched.url, questions, 4)
        readers.learn(5)
        switched.change(action="switch", model=str(other))
        readers.learn(5)
        switched.change(action="unload", model=other.name)
        idle = [switched.measure_rss()]
        switched.change(action="load", model=real.name)
        loaded = [switched.measure_rss()]
        readers.start()
        for number in range(times):
            took.append(switched.change(action="switch", model=(real.name, other.name)[number % 2 == 0]))
            loaded += [switched.measure_rss()] if number % 2 else []
            say(number, took[-1], len(readers.streams))
        found = readers.finish()
        switched.change(action="unload", model=(other.name, real.name)[times % 2 == 0])
        idle.append(switched.measure_rss())
        pids = switched.seen | set(list_processes(switched.head.popen.pid))
    time.sleep(2.0)
    wrong = {name: found[name] for name in ("different", "hung", "lost", "error")}
    return found | {
        "switch_s": spread(took),
        "rss_mib": {"idle": idle, "loaded": loaded},
        "faults": wrong | {"processes left": sum(map(is_running, pids))},
    }


def switch(run: Run) -> None:
    """Switch two machines between the model and one with random weights, twenty times, while clients ask for both."""
    run.part("switches", lambda: measure_switches(run.model, run.times(20)))
