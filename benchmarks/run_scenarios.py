"""What one fault at a time does not show; each scenario returns what was seen, and whether it is as it should be."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.run_cluster import PARALLAX, Cluster, Member, machine_of, start
from benchmarks.run_faults import KINDS, Dealer, Fault, block_one_way, inflict, partition, slow
from benchmarks.run_judge import Watch, judge
from benchmarks.run_streams import Clients
from tests.support.namespaces import Process, run

WHOLE_GB = "0.12"
"""Gigabytes with which a machine has room for all of the tiny model."""
DISK_MB = 48
"""The size of the server's disk."""
SETTLE_S = 120.0
MOVE_S = 60.0
"""Seconds within which a cluster serves again after the worst that a scenario does to it."""
FAKE_VERSION = """
import parallax_core.wire.codec as codec
codec.WIRE_VERSION, codec.VERSION_BYTE = 99, bytes([99])
"""


@dataclass(slots=True)
class Lab:
    """A cluster without anything on it, and the clients of a scenario."""

    cluster: Cluster
    num_streams: int
    times: int
    """How often a fault is repeated."""
    seed: str
    faults: list[Fault] = field(default_factory=list)

    @contextmanager
    def streaming(self) -> Iterator[dict[str, Any]]:
        """Read streams; at the end, judge them into what is yielded."""
        clients, watch, found = Clients(self.cluster, self.num_streams), Watch(self.cluster), dict[str, Any]()
        clients.learn()
        watch.start()
        clients.start()
        yield found
        clients.finish()
        watch.is_over = True
        found |= judge(clients.streams, clients.expected, self.faults, watch.losses)
        found |= {"moves": len(watch.moves), "load": max(watch.loads)}

    def await_ready(self, num_nodes: int = 0, patience_s: float = SETTLE_S) -> str:
        """Wait until the cluster is ready; return an empty string, or the reason why it is not."""
        try:
            self.cluster.await_ready(num_nodes, patience_s)
        except TimeoutError as error:
            return str(error)[:400]
        return ""

    def say(self, member: Member, *marks: str) -> list[str]:
        """Return the last lines of a machine that have one of some texts."""
        return [line for _, line in member.lines if any(mark in line for mark in marks)][-6:]


def is_whole(found: dict[str, Any]) -> bool:
    """Return whether each stream was whole, and no healthy node was lost."""
    return found["whole"] == found["streams"] > 0 and not found["lost_healthy_nodes"]


def repeat(kind: str, lab: Lab) -> dict[str, Any]:
    """Have a fault of one kind happen some times, each when the cluster has settled."""
    start(lab.cluster)
    dealer, unsettled = Dealer(lab.cluster, random.Random(lab.seed), [kind]), list[str]()  # noqa: S311 -- to be the same every time
    with lab.streaming() as found:
        for _ in range(lab.times):
            lab.faults.append(fault := dealer.draw())
            inflict(lab.cluster, fault)
            time.sleep(5.0)
            num_nodes = 1 + len(lab.cluster.workers) + lab.cluster.guest.is_running
            unsettled += filter(None, [lab.await_ready(num_nodes)])
    return found | {"unsettled": unsettled, "passes": is_whole(found) and not unsettled}


def join_unreachable(lab: Lab) -> dict[str, Any]:
    """F1: a machine serves alone, and one joins that it cannot reach."""
    cluster = lab.cluster
    first, second = cluster.workers[:2]
    cluster.serve("--no-local")
    cluster.join(first, memory=WHOLE_GB)
    cluster.await_ready(1)
    with lab.streaming() as found, partition(cluster, (first, second)):
        cluster.join(second, memory=WHOLE_GB)
        cluster.await_reports(2)
        time.sleep(MOVE_S)
        reason = lab.await_ready(1, 1.0)
        nodes = show_nodes(cluster)
    found |= {"not_ready": reason, "nodes": nodes, "said": lab.say(cluster.server, "cannot be built")}
    return found | {"passes": is_whole(found) and not reason}


def start_unreachable(lab: Lab) -> dict[str, Any]:
    """F1: two machines join that cannot reach each other, and either has room for the model."""
    cluster = lab.cluster
    first, second = cluster.workers[:2]
    cluster.serve("--no-local", "--nodes", "2")
    with partition(cluster, (first, second)):
        for each in (first, second):
            cluster.join(each, memory=WHOLE_GB)
        reason = lab.await_ready(2)
        nodes = show_nodes(cluster)
    return {"not_ready": reason, "nodes": nodes, "passes": not reason}


def reach_one_way(lab: Lab) -> dict[str, Any]:
    """F1: of three machines with a third of the model each, one does not reach another; other orders work."""
    cluster = lab.cluster
    cluster.serve("--no-local", "--nodes", "3")
    with block_one_way(cluster, (cluster.workers[0], cluster.workers[1])):
        for each in cluster.workers[:3]:
            cluster.join(each)
        reason = lab.await_ready(3)
        nodes = show_nodes(cluster)
    return {"not_ready": reason, "nodes": nodes, "passes": not reason}


def lose_standby(lab: Lab) -> dict[str, Any]:
    """F3: the server dies, a standby is promoted and dies, too; the old server serves again with its machines."""
    cluster = lab.cluster
    server, standby = cluster.server, cluster.workers[-1]
    cluster.serve("--nodes", "3")
    others = cluster.workers[:2]
    for each in others:
        cluster.join(each)
    cluster.await_ready(3)
    words = ("run", "--standby-of", cluster.code, "--port", "8000", "--memory", cluster.served.memory)
    hints = [line for line in standby.start(*words).await_end() if "`parallax keys allow" in line]
    with server.machine.running(PARALLAX, *hints[0].split("`")[1].split()[1:]) as allowing:
        allowing.await_end()
    standby.start(*words).await_line("following the coordinator")
    server.kill()
    with standby.machine.running(PARALLAX, "cluster", "promote") as promoting:
        promoted = promoting.await_end(60.0)
    time.sleep(20.0)
    standby.kill()
    options = ("--new-term",) if has_option(server, "run", "--new-term") else ()
    head = cluster.serve(*options)
    reason = lab.await_ready(3)
    if options and head.popen.poll() is not None:  # it had not heard of the standby's term, and has now
        head = cluster.serve(*options)
        reason = lab.await_ready(3)
    for each in others if reason else ():
        cluster.join(each)
    reason = reason and lab.await_ready(3)
    exits = {each.name: each.process.popen.poll() for each in (server, *others) if each.process}
    last = [line for _, line in head.lines[-4:]]
    return {"promoted": promoted, "exits": exits, "not_ready": reason, "last": last, "passes": not reason}


def differ_in_version(lab: Lab) -> dict[str, Any]:
    """F4: a machine with another wire version learns why it is refused, ends, and uses no code up."""
    cluster = lab.cluster
    machine = cluster.workers[0]
    cluster.serve("--no-local")
    (machine.machine.home / "fake").mkdir()
    (machine.machine.home / "fake" / "sitecustomize.py").write_text(FAKE_VERSION)
    with cluster.server.machine.running(PARALLAX, "cluster", "codes", "new") as making:
        code = making.await_line("parallax join ")[1].split()[2]
    before = ("env", f"PYTHONPATH={machine.machine.home / 'fake'}")
    process = machine.start("join", "--no-api", "--memory", "0.1", code, before=before)
    with suppress(TimeoutError):
        process.await_end(15.0)
    said, status = lab.say(machine, ""), process.popen.poll()
    other = await_outcome(cluster.join(cluster.workers[1], word=code))
    knows = any("version 99" in line for line in said)
    return {"said": said, "exit": status, "other": other, "passes": knows and status == 1 and "joined" in other}


def fill_disk(lab: Lab) -> dict[str, Any]:
    """F5: the server's disk is full; streams go on, and it serves again after it was killed."""
    cluster = lab.cluster
    home = cluster.server.machine.home
    models = (home / "models").resolve()
    shutil.rmtree(home)
    home.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(home))
    try:
        cluster.server.machine.move_in(models)
        start(cluster)
        with lab.streaming() as found:
            fill(home / "filling")
            time.sleep(20.0)
        cluster.server.kill()
        head = cluster.serve()
        reason = lab.await_ready(len(cluster.workers) + 1)
        last = [line for _, line in head.lines[-4:]]
    finally:
        cluster.server.kill()
        run("umount", "--lazy", str(home))
    return found | {"not_ready": reason, "last": last, "passes": is_whole(found) and not reason}


def join_twice(lab: Lab) -> dict[str, Any]:
    """F6: a machine joins twice with one home, and a copy of that home joins on another machine."""
    cluster = lab.cluster
    first, second = cluster.workers[:2]
    cluster.serve("--no-local")
    words = ("join", "--no-api", "--backend", "torch", cluster.code)
    first.start(*words).await_line("joined head=")
    with first.machine.running(PARALLAX, *words) as twin:
        seen: dict[str, Any] = {"twin": await_outcome(twin)}
        time.sleep(MOVE_S)  # the second one may end instead
        profiles = [node["profile"] or {} for node in cluster.view()["nodes"]]
        seen["memory_gb"] = [round(each.get("memory", 0) / 1e9, 1) for each in profiles]
        fits = sum(each.get("memory", 0) for each in profiles) <= profiles[0]["total_memory"]
    shutil.copytree(first.machine.home / "keys", second.machine.home / "keys")
    with second.machine.running(PARALLAX, *words) as clone:
        seen["clone"] = await_outcome(clone)
    return seen | {"passes": fits and "joined head=" not in seen["clone"]}


def not_fit(lab: Lab) -> dict[str, Any]:
    """F7: the model does not fit on two machines; what is said of that."""
    cluster = lab.cluster
    cluster.serve("--no-local", "--nodes", "2")
    for each in cluster.workers[:2]:
        cluster.join(each, memory="0.07")
    cluster.await_reports(2)
    time.sleep(1.0)
    reason = str(cluster.view().get("reason"))
    sizes = [int(word) for word in re.findall(r"(\d+) MiB", reason)]
    named = max(sizes, default=0), sum(int(word) for word in re.findall(r"(\d+) MiB together", reason))
    return {"reason": reason, "nodes": show_nodes(cluster), "passes": named[0] > named[1] > 0}


def come_back_slow(lab: Lab) -> dict[str, Any]:
    """F8: a slow machine is lost and joins again; it counts as slow still."""
    cluster = lab.cluster
    machine = cluster.workers[0]
    start(cluster)
    with lab.streaming() as found, slow(cluster, (machine,)):
        lab.faults.append(Fault("slow", (machine.name,), time.monotonic()))
        time.sleep(MOVE_S)
        before = find_slowdown(cluster, machine)
        lab.faults.append(fault := Fault("unplug", (machine.name,), time.monotonic()))
        inflict(cluster, fault)
        time.sleep(MOVE_S)
        after, nodes = find_slowdown(cluster, machine), show_nodes(cluster)
    found |= {"slowdown": {"before": before, "after": after}, "nodes": nodes}
    return found | {"passes": is_whole(found) and before is not None and after is not None and after > before / 2}


def restart_server(lab: Lab) -> dict[str, Any]:
    """The server is killed, and then told to end (SIGTERM); each time it is started again."""
    cluster, seconds = lab.cluster, dict[str, float]()
    start(cluster)
    with lab.streaming() as found:
        for name in ("SIGKILL", "SIGTERM"):
            time.sleep(5.0)
            if name == "SIGTERM" and cluster.server.process is not None:
                cluster.server.process.popen.terminate()
                cluster.server.process.popen.wait(30.0)
            cluster.server.kill()
            cluster.serve()
            seconds[name] = round(cluster.await_ready(len(cluster.workers) + 1), 1)
    return found | {"serves_after_s": seconds, "passes": not found["different"] + found["hung"]}


def find_slowdown(cluster: Cluster, member: Member) -> float | None:
    """Return how many times longer than predicted the steps of a machine take, as the server believes."""
    nodes = [node for node in cluster.view().get("nodes", []) if machine_of(node["node"]) == member.name]
    return nodes[0]["slowdown"] if nodes else None


def show_nodes(cluster: Cluster) -> list[str]:
    """Return what the server says of each node."""
    names = ("node", "state", "layers", "idle_reason", "slowdown")
    return [" ".join(str(node[name]) for name in names) for node in cluster.view().get("nodes", [])]


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def has_option(member: Member, command: str, option: str) -> bool:
    """Return whether a command has an option."""
    return option in run("ip", "netns", "exec", member.machine.namespace, PARALLAX, command, "--help")


def await_outcome(process: Process) -> str:
    """Wait until a machine has joined, or says why not; return that."""
    with suppress(TimeoutError):
        process.await_end(15.0)
    marks = ("error:", "no head at", "joined head=")
    return next((line for mark in marks for _, line in process.lines if mark in line), "")


SCENARIOS: dict[str, Callable[[Lab], dict[str, Any]]] = {
    "join-unreachable": join_unreachable,
    "start-unreachable": start_unreachable,
    "reach-one-way": reach_one_way,
    "standby": lose_standby,
    "version": differ_in_version,
    "disk": fill_disk,
    "twins": join_twice,
    "sizes": not_fit,
    "slow-again": come_back_slow,
    "restart": restart_server,
    **{kind: partial(repeat, kind) for kind in KINDS},
}
