"""A server (``parallax run``) and the machines that join it, each a network namespace with a home of its own."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.faults.run import wait_until
from benchmarks.record import PARALLAX
from tests.support.namespaces import SWITCH, Machine, Process, network, run

API = "http://127.0.0.1:8000"
PATIENCE_S = 240.0


@dataclass(slots=True)
class Member:
    """A machine of a cluster, and the command that it runs."""

    machine: Machine
    address: str
    port: str
    """Its port at the switch."""
    process: Process | None = None
    past: list[tuple[float, str]] = field(default_factory=list)
    """The lines of commands that have ended, and the times at which they were read."""
    _ending: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.popen.poll() is None

    @property
    def has_joined(self) -> bool:
        return self.is_running and self.process is not None and self.process.find("joined head=") is not None

    def start(self, *words: str) -> Process:
        self.kill()
        self.process = self._ending.enter_context(self.machine.running(PARALLAX, *words))
        return self.process

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.popen.pid, number)

    def kill(self) -> None:
        self._ending.close()
        if self.process is not None:
            self.past += self.process.lines
        self.process = None

    @property
    def lines(self) -> list[tuple[float, str]]:
        return [*self.past, *(self.process.lines if self.process else ())]

    def pids(self) -> list[int]:
        return [int(word) for word in run("ip", "netns", "pids", self.machine.namespace).split()]

    def nft(self, script: str) -> None:
        run("ip", "netns", "exec", self.machine.namespace, "nft", script)


class Cluster:
    """A server with layers of its own, machines that have joined, and one more that may join."""

    def __init__(self, members: Sequence[Member], model: str, memory: str, models: Path) -> None:
        self.server, *self.workers, self.guest = members
        self.members = list(members)
        self.model, self._memory, self._models = model, memory, models
        self._folder = self.server.machine.home.parent
        self._code = ""
        self._guests = 0

    def serve(self, *options: str) -> Process:
        words = ("run", self.model, "--port", "8000", "--memory", self._memory, "--backend", "torch", *options)
        head = self.server.start(*words)
        if not self._code:
            self._code = head.await_line("parallax join ")[1].split()[2]
        return head

    def join(self, member: Member) -> Process:
        words = ("--backend", "torch", "--allow-model", "*", "--memory", self._memory)
        return member.start("join", "--no-api", *words, self._code)

    def leave(self, member: Member) -> None:
        with member.machine.running(PARALLAX, "cluster", "leave") as process, suppress(TimeoutError):
            process.await_line("has left", 60.0)

    def view(self) -> dict[str, Any]:
        return self.server.machine.fetch(f"{API}/v1/cluster")

    def find_local(self) -> int | None:
        nodes = self.view().get("nodes", [])
        return next((int(each["pid"]) for each in nodes if each["node"].startswith("local")), None)

    def await_ready(self, num_nodes: int = 0, patience_s: float = PATIENCE_S) -> float:
        """Wait until the server is ready, no layers move, and enough nodes are there; return the seconds that took.

        Raises:
            TimeoutError: if that is not so in time; with what the server says.
        """
        begun = time.monotonic()
        if not wait_until(lambda: is_calm(self.view(), num_nodes), patience_s):
            view = self.view()
            raise TimeoutError(f"not ready: {view.get('status')} {view.get('reason')} {view.get('plan')}")
        return time.monotonic() - begun

    def renew_guest(self) -> None:
        self.guest.kill()
        self._guests += 1
        self.guest.machine = replace(self.guest.machine, home=self._folder / f"guest{self._guests}")
        self.guest.machine.move_in(self._models)


def is_calm(view: dict[str, Any], num_nodes: int) -> bool:
    if view.get("status") != "ready" or view["plan"] is None or view["plan"]["move"] is not None:
        return False
    return sum(node["profile"] is not None for node in view.get("nodes", [])) >= num_nodes


@contextmanager
def clustered(folder: Path, models: Path, served: tuple[str, str], num_machines: int) -> Iterator[Cluster]:
    """Make the machines of a cluster, one more, and nothing on them; keep what they said in ``folder/logs``."""
    names = [f"m{number}" for number in range(num_machines + 1)]
    with network(folder, models, *names) as machines:
        members = [Member(machine, f"10.77.0.{number + 1}", f"port{number}") for number, machine in enumerate(machines)]
        for each in members:
            each.machine.ip("addr", "add", f"{each.address}/24", "dev", "lan0")
        try:
            yield Cluster(members, *served, models)
        finally:
            (folder / "logs").mkdir(exist_ok=True)
            for each in members:
                each.kill()
                said = "".join(f"{at:.2f} {line}\n" for at, line in each.past)
                (folder / "logs" / f"{each.name}.log").write_text(said)


def start(cluster: Cluster) -> float:
    """Start the server and all machines but the guest; return the seconds until it served with all of them."""
    begun = time.monotonic()
    cluster.serve("--nodes", str(len(cluster.workers) + 1))
    for each in cluster.workers:
        cluster.join(each)
    cluster.await_ready(len(cluster.workers) + 1)
    return time.monotonic() - begun


def machine_of(node: str) -> str:
    """Return the machine of a node, by its name: ``m2/5982``, ``m2-2/5983`` or ``local/0``."""
    return "m0" if node.startswith("local") else re.split(r"[-/]", node)[0]


def cut_cable(member: Member, *, is_up: bool) -> None:
    run("ip", "-n", SWITCH, "link", "set", member.port, "up" if is_up else "down")
