"""Watches a cluster while faults happen to it, and judges what was seen."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.run_cluster import Cluster, machine_of
from benchmarks.run_faults import KINDS, Fault
from benchmarks.run_streams import Stream
from tests.support.namespaces import enter

GRACE_S = 5.0
"""Seconds after a fault within which a node that it touches may be lost."""
SAMPLE_S = 5.0
NEAR_S = 1.0
"""A wait that began so many seconds before a fault is because of it."""
PROMPT_KINDS = ("kill", "kill-local", "leave", "arrive")
"""Kinds of faults after which streams go on soon."""
MOST_GROWTH = {"descriptors": 10, "threads": 4, "resident_mb": 60}
"""By how much what the server holds may differ after the faults."""
OUTCOMES = ("whole", "different", "hung", "lost", "error")


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that has gone."""

    at: float
    node: str
    said: str
    """What the server said of it last."""


@dataclass(slots=True)
class Watch:
    """Hears the events of a server, and samples the load, in threads of its own."""

    cluster: Cluster
    losses: list[Loss] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    """The reasons for which layers moved."""
    loads: list[float] = field(default_factory=list)
    is_over: bool = False

    def start(self) -> None:
        """Begin."""
        for work in (self._hear, self._sample):
            threading.Thread(target=work, daemon=True).start()

    def _sample(self) -> None:
        while not self.is_over:
            self.loads.append(os.getloadavg()[0])
            time.sleep(SAMPLE_S)

    def _hear(self) -> None:
        enter(self.cluster.server.machine.namespace)
        while not self.is_over:
            with suppress(OSError, HTTPException):
                self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        """Note events until the connection ends."""
        connection = HTTPConnection("127.0.0.1", 8000, timeout=60.0)
        connection.request("GET", "/v1/cluster/events")
        pids: dict[str, int] = {}
        name = move = ""
        for raw in connection.getresponse():
            key, _, value = raw.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                data = json.loads(value)
                if name.startswith("node_"):
                    self._note_node(name, data, pids)
                if name == "plan" and data["move"] and data["move"]["reason"] != move:
                    self.moves.append(data["move"]["reason"])
                if name == "plan":
                    move = data["move"]["reason"] if data["move"] else ""

    def _note_node(self, name: str, node: dict[str, Any], pids: dict[str, int]) -> None:
        key = str(node["node"])
        former = pids.pop(key, node["pid"])
        if name == "node_left" or former != node["pid"]:
            lines = [line for _, line in self.cluster.server.lines if key in line and "layers" not in line]
            self.losses.append(Loss(time.monotonic(), key, lines[-1] if lines else ""))
        if name != "node_left":
            pids[key] = node["pid"]


def find_unexplained(losses: Sequence[Loss], faults: Sequence[Fault]) -> list[Loss]:
    """Return the losses of nodes to which nothing had happened."""
    return [
        loss
        for loss in losses
        if not any(
            fault.at <= loss.at <= fault.until + GRACE_S and fault.touches(machine_of(loss.node)) for fault in faults
        )
    ]


def judge(
    streams: Sequence[Stream], expected: Sequence[str], faults: Sequence[Fault], losses: Sequence[Loss]
) -> dict[str, Any]:
    """Return how the streams ended, the pauses of each kind of fault, and the losses of healthy nodes."""
    outcomes = Counter(stream.judge(expected[stream.number]) for stream in streams)
    note_pauses(streams, faults)
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in faults)]
    unexplained = find_unexplained(losses, faults)
    return {
        "streams": len(streams),
        **{name: outcomes[name] for name in OUTCOMES},
        "errors": dict(Counter(stream.error for stream in streams if stream.error)),
        "refused": sum(stream.refused > 0 for stream in streams),
        "faults": len(faults),
        "longest_pause_s": round(
            max((until - since for each in streams for since, until in each.gaps), default=0.0), 1
        ),
        "pause_s": {
            "all": spread([fault.pause_s for fault in faults]),
            "prompt": spread([fault.pause_s for fault in faults if fault.kind in PROMPT_KINDS]),
            **{kind: spread([fault.pause_s for fault in faults if fault.kind == kind]) for kind in kinds},
        },
        "lost_nodes": len(losses),
        "lost_healthy_nodes": len(unexplained),
        "said_of_them": [f"{loss.node}: {loss.said}" for loss in unexplained[:20]],
    }


def find_failures(found: dict[str, Any], most_pause_s: float) -> list[str]:
    """Return what a run shows that should not be; a pause that is too long, with the load of the machine."""
    counts = ("different", "hung", "lost", "error", "lost_healthy_nodes")
    failures = [f"{name}: {found[name]}" for name in counts if found[name]]
    late = found["pause_s"]["prompt"].get("p95", 0.0)
    failures += [f"pauses: {late} s at a load up to {found['load']['most']:.1f}"] if late > most_pause_s else []
    before, after = found["before"], found["after"]
    failures += [f"requests left: {after['requests']}"] if after["requests"] else []
    failures += [f"pages differ: {after['pages']}"] if any(len(set(each)) > 1 for each in after["pages"]) else []
    grown = {name: after["server"][name] - before["server"][name] for name in MOST_GROWTH}
    failures += [f"{name} of the server: +{grown[name]}" for name, most in MOST_GROWTH.items() if grown[name] > most]
    extra = {name: after["processes"][name] - number for name, number in before["processes"].items() if number}
    return failures + [f"processes of {name}: {number:+}" for name, number in extra.items() if number]


def note_pauses(streams: Sequence[Stream], faults: Sequence[Fault]) -> None:
    """Note the longest wait of a stream because of each fault: one that it came near the beginning of, or before."""
    gaps = [gap for stream in streams for gap in stream.gaps]
    for fault in faults:
        fault.pause_s = 0.0
    for since, until in gaps:
        earlier = [fault for fault in faults if fault.at <= min(since + NEAR_S, until)]
        if earlier:
            earlier[-1].pause_s = max(earlier[-1].pause_s, until - since)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the number, the median, the 95th percentile and the largest."""
    if not (kept := sorted(seconds)):
        return {"number": 0}
    p95 = kept[round(0.95 * (len(kept) - 1))]
    found = {"median": median(kept), "p95": p95, "worst": kept[-1]}
    return {"number": len(kept), **{name: round(value, 2) for name, value in found.items()}}


def take_stock(cluster: Cluster) -> dict[str, Any]:
    """Return what a cluster holds while it does nothing: requests, pages, processes, and what the server's hold."""
    view = cluster.view()
    replicas, pids = view.get("replicas", []), cluster.server.pids()
    return {
        "requests": sum(replica["requests"] for replica in replicas),
        "pages": [
            [sum(pool["used"] for pool in stage["pools"]) for stage in replica["stages"]] for replica in replicas
        ],
        "processes": {each.name: len(each.pids()) for each in cluster.members},
        "server": sum_up([pid for pid in pids if pid == server_pid(cluster)]),
        "server_children": sum_up([pid for pid in pids if pid != server_pid(cluster)]),
    }


def server_pid(cluster: Cluster) -> int:
    """Return the process of the server."""
    return cluster.server.process.popen.pid if cluster.server.process else 0


def sum_up(pids: Sequence[int]) -> dict[str, int]:
    """Return the descriptors, threads and resident megabytes of processes together."""
    found = Counter[str]()
    for pid in pids:
        with suppress(OSError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found["descriptors"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found["threads"] += int(status["Threads"])
            found["resident_mb"] += int(status["VmRSS"].split()[0]) // 1024
    return dict(found)
