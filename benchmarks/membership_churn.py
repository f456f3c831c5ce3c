"""Has nodes join, leave, die, stall and become slow at random while clients send requests, under a coordinator.

    python -m benchmarks.membership_churn --out benchmarks/results/membership-churn.json

Nodes are worker processes that run a toy model of three layers, as slowly as the device for which each is taken. Each
has room for one to four layers, and a speed of its own; the coordinator plans pipelines over those that are there.
Sixty times, after a pause of up to two seconds, a node joins, leaves (SIGTERM), is killed (SIGKILL), stands still for
three seconds (SIGSTOP), longer than its links bear, or takes four times as long for each step from then on. Slow nodes
are noticed ten times as quickly as usual. There are always enough nodes for the model, but between two plans requests
may have to wait, and new ones may be refused.

Every request must end with the tokens of the toy computed alone. In the end every pipeline of the last plan must serve,
and no process may be left over. ``pause_s`` is the longest wait of each request for a token; ``moves`` counts the moves
of layers that the coordinator announced, and those because of nodes that had become slower or faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.crowd import TOY, ClientPool, finish_clients, now
from benchmarks.paced_cluster import GB, PacedCluster, PacedFleet, running
from benchmarks.processes import is_running
from benchmarks.record import describe_run, write_report
from parallax_core.contracts.status import PlannedMove

STALL_S = 3.0
CLIENTS = 6
FIRST, MOST = 4, 8
"""The nodes at the beginning, and the most at a time."""
LEAST_ROOM = 5
"""The layers for which the nodes that stay must have room: more than the model has, since a node may stand still."""
KINDS = ("join", "leave", "kill", "stall", "slow")
LOOK_S = 0.02
CALM_S = 10.0
"""Seconds after the last strike, in which slow nodes can be found."""


class Churn:
    """Strikes the nodes of a fleet at random."""

    def __init__(self, fleet: PacedFleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._random = rng

    def draw_node(self) -> tuple[float, float]:
        """Return the room of a node for layers, and its FLOPs per second."""
        return self._random.choice((1.5, 2.5, 4.0)), 10 ** self._random.uniform(12, 13.3)

    def can_spare(self, node: str) -> bool:
        """Return whether the others have room for the model."""
        rooms = (self._fleet.profiles[each].device.memory for each in self._fleet.pids if each != node)
        return sum(room // GB for room in rooms) >= LEAST_ROOM

    async def strike(self, kind: str) -> str:
        """Have something happen to a node; return what and to which."""
        fleet = self._fleet
        fleet.pids = {node: pid for node, pid in fleet.pids.items() if is_running(pid)}  # some were taken for dead
        if kind == "slow" and (fast := sorted(set(fleet.pids) - fleet.slow)):
            fleet.slow_down(node := self._random.choice(fast))
            return f"slow {node}"
        spare = [node for node in fleet.pids if self.can_spare(node)]
        if kind in {"join", "slow"} or not spare:
            return f"join {await fleet.join(*self.draw_node())}" if len(fleet.pids) < MOST else "nothing"
        node = self._random.choice(spare)
        pid = fleet.pids[node]
        if kind == "stall":
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STALL_S)
        with suppress(ProcessLookupError):
            os.kill(pid, {"leave": signal.SIGTERM, "kill": signal.SIGKILL, "stall": signal.SIGCONT}[kind])
        del fleet.pids[node]  # the toy's process ends also when it has lost its head
        return f"{kind} {node}"


async def run(times: int, seed: int) -> dict[str, Any]:
    """Have so many things happen, and return the figures."""
    rng, errors = random.Random(seed), list[str]()  # noqa: S311 -- to be the same every time, not to be secret
    with TemporaryDirectory(prefix="churn-") as private:
        cluster, begun = PacedCluster(Path(private), CLIENTS), now()
        churn, reasons = Churn(cluster.fleet, rng), list[str]()
        pool = ClientPool(cluster.router, rng, lambda finish: errors.append(finish.message), is_toy=True)
        strikes: Counter[str] = Counter()
        async with running(cluster, [churn.draw_node() for _ in range(FIRST)]):
            clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS)]
            watching = asyncio.create_task(note_moves(cluster, reasons))
            for number in range(times):
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                strike = await churn.strike(rng.choice(KINDS))
                strikes[strike.partition(" ")[0]] += 1
                print(number, strike, len(cluster.fleet.pids), len(pool.sent), file=sys.stderr, flush=True)
            await asyncio.sleep(CALM_S)
            converged_s = await cluster.converge()
            watching.cancel()
            hung = await finish_clients(clients, pool)
        await asyncio.sleep(1.0)
        left = sum(map(is_running, cluster.fleet.all_pids))
    wrong = [sent for sent in pool.sent if sent.tokens != TOY.continuation(sent.prompt, sent.length)]
    pauses = sorted(sent.pause_s for sent in pool.sent)
    return {
        "strikes": dict(strikes),
        "moves": {"all": len(reasons), "speed": sum("times as long" in reason for reason in reasons)},
        "requests": len(pool.sent),
        "refused": pool.num_refused,
        "seconds": round(now() - begun, 1),
        "converged_s": converged_s,
        "pause_s": {name: round(pauses[int(share * (len(pauses) - 1))], 3) for name, share in SHARES.items()},
        "errors": errors[:5],
        "faults": {"wrong": len(wrong), "hung": hung, "not converged": converged_s is None, "processes left": left},
    }


async def note_moves(cluster: PacedCluster, reasons: list[str]) -> None:
    """Note why layers move, each time that is announced."""
    latest: PlannedMove | None = None
    while True:
        move = cluster.coordinator.move
        if move is not None and (latest is None or move.reason != latest.reason):
            reasons.append(move.reason)
        latest = move
        await asyncio.sleep(LOOK_S)


SHARES = {"median": 0.5, "p95": 0.95, "most": 1.0}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = ["benchmarks.membership_churn", "--times", str(options.times), "--seed", str(options.seed)]
    found = asyncio.run(run(options.times, options.seed)) | describe_run(command, ["pyzmq"])
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    assert not any(found["faults"].values())


if __name__ == "__main__":
    main()
