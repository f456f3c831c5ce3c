"""Are requests answered or ended with an error when the process of an engine that schedules itself is killed?

    python -m benchmarks.engine_kills --times 100 --out benchmarks/results/engine-kills.json

The engine is a toy's, in a worker process, behind a router. While 16 clients send requests, its process is killed
(SIGKILL), or every tenth time stopped (SIGSTOP), and again once a request sent since is answered. Every request must
end: with all its tokens, or with an error and the first of them. In the end no process may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.crowd import TOY, ClientPool, SentRequest, finish_clients, now
from benchmarks.processes import is_running
from benchmarks.record import describe_run, write_report
from parallax_core.api import TransportPlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.routing.router import Router
from parallax_core.node.whole_model.engine import TextEngine
from parallax_core.node.whole_model.host import EngineAssignment, EngineHost
from parallax_core.node.whole_model.remote import RemoteEngine
from parallax_core.testing.node import BACKEND, name_toy
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport

CLIENTS = 16
NODE = "worker/0/0"
STOP_EVERY = 10
TIMEOUT_S = 2.5
"""Seconds of silence after which the process counts as lost."""


class KilledEngine:
    """An engine whose process is killed again and again."""

    def __init__(self, private: Path) -> None:
        self._private = private
        head = TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=TIMEOUT_S)
        self.registry = NodeRegistry(ZmqTransport(head), "head")
        self.supervisor = WorkerSupervisor(self._make_command)
        assignment = EngineAssignment(node=NODE, model=name_toy(TOY), backend=BACKEND)
        host = EngineHost(assignment, self.registry, self.supervisor)
        self.engine = TextEngine(RemoteEngine(host), lambda tokens: "x" * len(tokens))
        self.router = Router([self.engine], LeastPendingTokens(), lambda: self.engine.max_length)
        self.pids: set[int] = set()

    def kill(self, number: int) -> None:
        """Kill or stop the process for the given time."""
        [pid] = self.supervisor.pids
        self.pids.add(pid)
        os.kill(pid, signal.SIGKILL if (number + 1) % STOP_EVERY else signal.SIGSTOP)

    def _make_command(self, node: str) -> Sequence[str]:
        plan = {
            "node": node,
            "transport": "parallax_transport_zmq.transport:ZmqTransport",
            "connect": self.registry.address,
            "listen": place_local(self._private, node),
            "timeout_s": TIMEOUT_S,
        }
        return [sys.executable, "-m", "parallax_core.testing.node", json.dumps(plan)]


async def measure(times: int, rng: random.Random, private: Path) -> dict[str, Any]:
    """Kill the engine so many times; return what became of the requests."""
    killed, reasons = KilledEngine(private), Counter[str]()
    await killed.registry.start()
    await killed.router.start()
    pool = ClientPool(killed.router, rng, lambda finish: reasons.update([finish.message]), is_toy=True)
    clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS)]
    seconds = []
    for number in range(times):
        await asyncio.sleep(rng.random() / 2)
        begun = now()
        killed.kill(number)
        await wait_loss(killed, number + 1)
        await pool.wait_answer()
        seconds.append(now() - begun)
    num_hung = await finish_clients(clients, pool)
    killed.pids |= set(killed.supervisor.pids)
    [status] = killed.engine.describe()
    await killed.router.stop()
    await killed.registry.stop()
    return {
        "kills": times,
        "restarts": status.stages[0].restarts,
        "requests": dict(Counter(judge(sent) for sent in pool.sent)),
        "refused": pool.num_refused,
        "hung_clients": num_hung,
        "errors": dict(reasons),
        "processes_left": sum(map(is_running, killed.pids)),
        "seconds_to_next_answer": {"median": sorted(seconds)[times // 2], "largest": max(seconds)},
    }


async def wait_loss(killed: KilledEngine, count: int) -> None:
    """Wait until the engine has noticed the given number of losses."""
    async with asyncio.timeout(10 * TIMEOUT_S):
        while killed.engine.describe()[0].num_losses < count:  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.01)


def judge(sent: SentRequest) -> str:
    """Return how a request ended: answered, with an error, or wrongly."""
    expected = TOY.continuation(sent.prompt, sent.length)
    if sent.reason == "length":
        return "answered" if sent.tokens == expected else "wrong"
    return "error" if sent.reason == "error" and sent.tokens == expected[: len(sent.tokens)] else "wrong"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    with TemporaryDirectory(prefix="parallax-") as private:
        found = asyncio.run(measure(args.times, random.Random(args.seed), Path(private)))  # noqa: S311 -- a seed for measurements
    report = {**describe_run(["benchmarks.engine_kills", f"--times {args.times}"]), "seed": args.seed, **found}
    print(json.dumps(report, indent=2))
    write_report(args.out, report)


if __name__ == "__main__":
    main()
