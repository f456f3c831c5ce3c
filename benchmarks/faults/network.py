"""Faults of machines and of the network between them, each a context: it begins, and it ends.

What a fault touches decides which nodes may be lost: those that were stopped, and those that the server cannot reach.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations, islice, permutations
from pathlib import Path
from typing import TypeVar

from benchmarks.faults.machines import Cluster, Member, cut_cable
from benchmarks.processes import Quota
from tests.support.namespaces import run

SLOW_SHARE = 0.1
"""The share of a processor that a slow machine has."""
CUT = "add table inet cut; add chain inet cut {chain} {{ type filter hook {chain} priority 0; }}; "

T = TypeVar("T")
Targets = tuple[Member, ...]
Action = Callable[[Cluster, Targets], AbstractContextManager[None]]


@contextmanager
def kill(cluster: Cluster, targets: Targets) -> Iterator[None]:
    targets[0].kill()
    yield
    cluster.join(targets[0])


@contextmanager
def freeze(_: Cluster, targets: Targets) -> Iterator[None]:
    targets[0].send(signal.SIGSTOP)
    yield
    targets[0].send(signal.SIGCONT)


@contextmanager
def unplug(_: Cluster, targets: Targets) -> Iterator[None]:
    cut_cable(targets[0], is_up=False)
    yield
    cut_cable(targets[0], is_up=True)


@contextmanager
def block_one_way(_: Cluster, targets: Targets) -> Iterator[None]:
    first, second = targets
    route = ("blackhole", f"{second.address}/32")
    first.machine.ip("route", "add", *route)
    yield
    first.machine.ip("route", "del", *route)


@contextmanager
def partition(cluster: Cluster, targets: Targets) -> Iterator[None]:
    first, second = targets
    with block_one_way(cluster, (first, second)), block_one_way(cluster, (second, first)):
        yield


@contextmanager
def filtering(member: Member, *rules: str) -> Iterator[None]:
    member.nft("".join(CUT.format(chain=chain) for chain in ("input", "output")) + "; ".join(rules))
    yield
    member.nft("delete table inet cut")


def drop(_: Cluster, targets: Targets) -> AbstractContextManager[None]:
    first, second = targets
    ways = (f"input ip saddr {second.address}", f"output ip daddr {second.address}")
    return filtering(first, *(f"add rule inet cut {way} drop" for way in ways))


def drop_one_way(_: Cluster, targets: Targets) -> AbstractContextManager[None]:
    first, second = targets
    return filtering(second, f"add rule inet cut input ip saddr {first.address} drop")


def halve(_: Cluster, targets: Targets) -> AbstractContextManager[None]:
    """Drop the packets of the connections that two machines have now, silently; new ones work."""
    first, second = targets
    words = ("ip", "netns", "exec", first.machine.namespace, "ss", "-Htn", "state", "established", "dst")
    pairs = [line.split()[2:4] for line in run(*words, second.address).splitlines()]
    ports = [(near.rpartition(":")[2], far.rpartition(":")[2]) for near, far in pairs]
    rules = [f"add rule inet cut input ip saddr {second.address} tcp dport {a} tcp sport {b} drop" for a, b in ports]
    rules += [f"add rule inet cut output ip daddr {second.address} tcp sport {a} tcp dport {b} drop" for a, b in ports]
    return filtering(first, *rules)


@contextmanager
def leave(cluster: Cluster, targets: Targets) -> Iterator[None]:
    cluster.leave(targets[0])
    yield
    cluster.join(targets[0])


@contextmanager
def arrive(cluster: Cluster, _: Targets) -> Iterator[None]:
    if cluster.guest.is_running:
        cluster.leave(cluster.guest)
        cluster.guest.kill()
    else:
        cluster.renew_guest()
        cluster.join(cluster.guest)
    yield


@contextmanager
def signal_local(cluster: Cluster, *numbers: signal.Signals) -> Iterator[None]:
    """Send a signal to the server's own worker, and others at the end; if it is killed the server starts another."""
    pid = cluster.find_local()
    for index, number in enumerate(numbers):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if not index:
            yield


@contextmanager
def restart(cluster: Cluster, _: Targets) -> Iterator[None]:
    cluster.server.kill()
    yield
    cluster.serve()


@contextmanager
def slow(_: Cluster, targets: Targets) -> Iterator[None]:
    quota = Quota(targets[0].machine.namespace, SLOW_SHARE)
    move(targets[0], quota.folder)
    yield
    move(targets[0], quota.folder.parent)
    time.sleep(0.1)
    quota.remove()


def move(member: Member, group: Path) -> None:
    for pid in member.pids():
        with suppress(OSError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of fault."""

    act: Action
    hold_s: float
    """Seconds until it ends."""
    picks: str = "worker"
    """What it is done to: a worker, any machine, a pair of machines in both directions or in one, or nothing."""
    stops: bool = True
    """Whether the process of what it is done to cannot answer."""


KINDS = {
    "kill": Kind(act=kill, hold_s=1.0),
    "freeze": Kind(act=freeze, hold_s=5.0),
    "unplug": Kind(act=unplug, hold_s=3.0, picks="machine", stops=False),
    "unplug-long": Kind(act=unplug, hold_s=10.0, picks="machine", stops=False),
    "partition": Kind(act=partition, hold_s=8.0, picks="pair", stops=False),
    "partition-one-way": Kind(act=block_one_way, hold_s=8.0, picks="direction", stops=False),
    "drop": Kind(act=drop, hold_s=8.0, picks="pair", stops=False),
    "drop-one-way": Kind(act=drop_one_way, hold_s=8.0, picks="direction", stops=False),
    "half-open": Kind(act=halve, hold_s=10.0, picks="pair", stops=False),
    "leave": Kind(act=leave, hold_s=0.0),
    "arrive": Kind(act=arrive, hold_s=0.0, picks="guest"),
    "kill-local": Kind(act=lambda cluster, _: signal_local(cluster, signal.SIGKILL), hold_s=0.0, picks="server"),
    "freeze-local": Kind(
        act=lambda cluster, _: signal_local(cluster, signal.SIGSTOP, signal.SIGCONT), hold_s=4.0, picks="server"
    ),
    "slow": Kind(act=slow, hold_s=10.0),
}
RESTART = Kind(act=restart, hold_s=1.0, picks="server")
"""Only by name: requests under way end with the server."""


@dataclass(slots=True)
class Fault:
    """A fault that has happened, with its times in seconds."""

    kind: str
    machines: tuple[str, ...]
    at: float
    until: float = float("inf")

    def touches(self, machine: str) -> bool:
        kind = find_kind(self.kind)
        if kind is RESTART:
            return True
        if kind.stops:
            return machine in self.machines
        if self.machines == ("m0",):  # nobody reaches the server
            return machine != "m0"
        is_server_cut = kind.picks == "machine" or "m0" in self.machines
        return is_server_cut and machine in self.machines and machine != "m0"


def find_kind(name: str) -> Kind:
    return RESTART if name == "restart" else KINDS[name]


class Dealer:
    """Deals kinds of faults, and what they are done to, each equally often and in random order."""

    def __init__(self, cluster: Cluster, rng: random.Random, kinds: Sequence[str]) -> None:
        machines = [cluster.server, *cluster.workers]
        choices: dict[str, list[Targets]] = {
            "worker": [(each,) for each in cluster.workers],
            "machine": [(each,) for each in machines],
            "pair": list(combinations(machines, 2)),
            "direction": list(permutations(machines, 2)),
            "server": [(cluster.server,)],
            "guest": [(cluster.guest,)],
        }
        self._kinds = shuffle(kinds, rng)
        self._targets = {kind: shuffle(choices[find_kind(kind).picks], rng) for kind in kinds}
        self._always = (cluster.server, cluster.guest)

    def draw(self) -> Fault:
        while True:
            kind = next(self._kinds)
            for targets in islice(self._targets[kind], 4):
                if all(each in self._always or each.has_joined for each in targets):
                    return Fault(kind, tuple(each.name for each in targets), time.monotonic())


def shuffle(choices: Sequence[T], rng: random.Random) -> Iterator[T]:
    while True:
        yield from rng.sample(choices, len(choices))


def inflict(cluster: Cluster, fault: Fault) -> None:
    kind, named = find_kind(fault.kind), {each.name: each for each in cluster.members}
    with kind.act(cluster, tuple(named[name] for name in fault.machines)):
        time.sleep(kind.hold_s)
    fault.until = time.monotonic()
