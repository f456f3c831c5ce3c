"""A scenario of four machines in network namespaces, which hold a model that none of them has room for."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from benchmarks.faults.machines import API, Cluster, clustered, machine_of, start
from benchmarks.faults.network import KINDS, Dealer, Fault, inflict
from benchmarks.faults.readers import PROMPTS, Readers, make_questions
from benchmarks.faults.run import Figures, Run, private_folder, say, spread
from benchmarks.record import find_model
from parallax_core.config.home import models_folder
from tests.e2e.tiny import Sizes, write_tiny
from tests.support.namespaces import enter, has_namespaces

MACHINES, STREAMS, PARTS, PART_S = 4, 6, 2, 900.0
CALM_S = 120.0
"""Seconds within which the cluster is as before, once nothing happens any more."""
GRACE_S = 5.0
"""Seconds after a fault within which a node that it touches may be lost."""
NEAR_S = 1.0
"""Seconds before a fault in which a wait may begin that the fault causes."""
PROMPT_KINDS = ("kill", "kill-local", "leave", "arrive")
"""Kinds of faults after which streams go on soon."""
MOST_PAUSE_S = {"tiny": 5.0, "smollm2": 10.0}
"""The 95th percentile of the pauses because of `PROMPT_KINDS` is at most this, by model."""
MOST_GROWTH = {"descriptors": 10, "threads": 4, "resident_mb": 60}
"""By how much what the server holds may differ after the faults."""


@dataclass(slots=True)
class Watch:
    """Hears the events of a server, and samples the load, in threads of its own."""

    cluster: Cluster
    losses: list[tuple[float, str, str]] = field(default_factory=list)
    """The times at which nodes have gone, their names, and what the server said of them last."""
    moves: list[str] = field(default_factory=list)
    """The reasons for which layers moved."""
    is_over: bool = False

    def start(self) -> None:
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        enter(self.cluster.server.machine.namespace)
        while not self.is_over:
            with suppress(OSError, HTTPException):
                self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        connection = HTTPConnection("127.0.0.1", 8000, timeout=60.0)
        connection.request("GET", "/v1/cluster/events")
        pids: dict[str, int] = {}
        name = move = ""
        for raw in connection.getresponse():
            key, _, value = raw.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data" and name.startswith("node_"):
                self._note_node(name, json.loads(value), pids)
            elif key == "data" and name == "plan":
                planned = json.loads(value)["move"]
                reason = planned["reason"] if planned else ""
                self.moves += [reason] if reason and reason != move else []
                move = reason

    def _note_node(self, name: str, node: dict[str, Any], pids: dict[str, int]) -> None:
        key = str(node["node"])
        former = pids.pop(key, node["pid"])
        if name == "node_left" or former != node["pid"]:
            lines = [line for _, line in self.cluster.server.lines if key in line and "layers" not in line]
            self.losses.append((time.monotonic(), key, lines[-1] if lines else ""))
        if name != "node_left":
            pids[key] = node["pid"]


def find_pauses(gaps: Sequence[tuple[float, float]], faults: Sequence[Fault]) -> list[float]:
    """Return the longest wait because of each fault: one that it came near the beginning of, or before."""
    pauses = [0.0] * len(faults)
    for since, until in gaps:
        earlier = [index for index, fault in enumerate(faults) if fault.at <= min(since + NEAR_S, until)]
        if earlier:
            pauses[earlier[-1]] = max(pauses[earlier[-1]], until - since)
    return pauses


def judge_faults(readers: Readers, faults: Sequence[Fault], watch: Watch) -> Figures:
    """Return the pauses of each kind of fault, and the losses of nodes to which nothing had happened."""
    pauses = list(zip(find_pauses(readers.gaps, faults), [fault.kind for fault in faults], strict=True))
    unexplained = [
        f"{node}: {said}"
        for at, node, said in watch.losses
        if not any(f.at <= at <= f.until + GRACE_S and f.touches(machine_of(node)) for f in faults)
    ]
    return {
        "struck": dict(Counter(fault.kind for fault in faults)),
        "pause_s": {
            "all": spread(pause for pause, _ in pauses),
            "prompt": spread(pause for pause, kind in pauses if kind in PROMPT_KINDS),
            **{each: spread(pause for pause, kind in pauses if kind == each) for _, each in pauses},
        },
        "lost_nodes": len(watch.losses),
        "lost_healthy_nodes": unexplained,
        "moves": len(watch.moves),
        "load": os.getloadavg()[0],
    }


def take_stock(cluster: Cluster) -> dict[str, Any]:
    """Return what a cluster holds while it does nothing: requests, pages, processes, and what the server's hold."""
    replicas = cluster.view().get("replicas", [])
    pages = [[sum(pool["used"] for pool in stage["pools"]) for stage in replica["stages"]] for replica in replicas]
    held = Counter[str]()
    pid = cluster.server.process.popen.pid if cluster.server.process else 0
    with suppress(OSError):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        held["descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        held["threads"] = int(status["Threads"])
        held["resident_mb"] = int(status["VmRSS"].split()[0]) // 1024
    return {
        "requests": sum(replica["requests"] for replica in replicas),
        "pages_differ": sum(len(set(each)) > 1 for each in pages),
        "processes": {each.name: len(each.pids()) for each in cluster.members if each is not cluster.guest},
        **held,
    }


def compare_stock(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    grown = {name: after.get(name, 0) - before.get(name, 0) for name in MOST_GROWTH}
    faults: dict[str, Any] = {f"{name} grew": grown[name] > most for name, most in MOST_GROWTH.items()}
    faults |= {name: after[name] for name in ("requests", "pages_differ")}
    return faults | {"processes": after["processes"] != before["processes"]}


def disturb(cluster: Cluster, faults: list[Fault], run: Run, rng: random.Random) -> None:
    dealer = Dealer(cluster, rng, run.options.kinds or list(KINDS))
    begun = due = time.monotonic()
    while (due := max(due + run.options.every, time.monotonic())) < begun + run.seconds(PART_S):
        time.sleep(max(0.0, due - time.monotonic()))
        faults.append(fault := dealer.draw())
        inflict(cluster, fault)
        say(f"{time.monotonic() - begun:7.1f} {fault.kind} {' '.join(fault.machines)}")


def settle(cluster: Cluster) -> float | None:
    """Wait until all machines are there again and serve; return the seconds that took; None: they do not."""
    try:
        return cluster.await_ready(len(cluster.workers) + 1 + cluster.guest.is_running, CALM_S)
    except TimeoutError as error:
        say(error)
        return None


def measure(run: Run, model: str, seed: str) -> Figures:
    models, faults = models_folder().resolve(), list[Fault]()
    with private_folder() as folder:
        served, tokens = MODELS[model](folder)
        with clustered(folder, models, served, MACHINES) as cluster:
            ready_s, watch = start(cluster), Watch(cluster)
            questions = make_questions(served[0].rpartition("/")[2], tokens, len(PROMPTS))
            readers = Readers(API, questions, STREAMS, partial(enter, cluster.server.machine.namespace))
            readers.learn()
            before = take_stock(cluster)
            watch.start()
            readers.start()
            disturb(cluster, faults, run, random.Random(seed))
            found = readers.finish()
            calm_s, again = settle(cluster), readers.ask_again()
            watch.is_over = True
            after = take_stock(cluster)
        if run.options.logs is not None:
            shutil.copytree(folder / "logs", run.options.logs / seed.replace(" ", "-"), dirs_exist_ok=True)
    judged = judge_faults(readers, faults, watch)
    late = judged["pause_s"]["prompt"].get("p95", 0.0)
    wrong = {name: found[name] for name in ("different", "hung", "lost", "error")}
    wrong |= {"healthy nodes lost": len(judged["lost_healthy_nodes"]), "not calm": calm_s is None}
    wrong |= {"long pauses": late > MOST_PAUSE_S[model], "no answer at the end": again != "whole"}
    if "restart" in run.options.kinds:
        wrong["lost"] = 0  # what was under way ended with the server
    times = {"ready_s": round(ready_s, 1), "calm_s": calm_s, "before": before, "after": after}
    return found | judged | times | {"faults": wrong | compare_stock(before, after)}


def make_tiny(folder: Path) -> tuple[tuple[str, str], int]:
    made = write_tiny(folder / "tiny", find_model(), Sizes(layers=12, hidden=256, inner=768, context=1024))
    return (str(made), "0.075"), 120


def take_smollm2(_: Path) -> tuple[tuple[str, str], int]:
    find_model()
    return ("smollm2-135m", "0.15"), 60


MODELS = {"tiny": make_tiny, "smollm2": take_smollm2}
"""Makes what is served in a folder: the model, the gigabytes of each machine, and the tokens of an answer."""


def lan(run: Run) -> None:
    """Every 15 s a fault happens to a machine, or between two, while six clients read streams; two parts a model.

    Each stream must be, byte for byte, that of a run in which nothing happened; a request that is refused with a 503 is
    sent again. A node is lost without a reason if nothing has happened to it, nor to its link with the server. One kind
    of fault at a time: ``--kinds partition --every 45 --minutes 3``; ``restart`` is a kind only by name.
    Needs root, `ip netns`, `nft`, `ss` and control groups.
    """
    if os.geteuid() or not has_namespaces():
        raise SystemExit("it needs root and `ip netns`")
    for model in MODELS:
        for part in range(PARTS):
            name = f"{model} {run.seed} {part}"
            run.part(name, partial(measure, run, model, name))
