"""Measures the overhead of a hop between stage processes, beyond the wire and the compute time of the stages.

    python -m benchmarks.hop --out benchmarks/results/hop.json

Three stages that compute nothing run in their own processes on loopback. One step at a time, of 1, 8 or 64 decode rows,
goes from the head through all of them and back, with float32 hidden states of width 576 between the stages. In turns
with it runs `raw`: a message of the same size there and back between two processes, by blocking calls of pyzmq, without
checks and without the encryption that links over TCP have; for `lattica`, over TCP. A hop is one of the four transfers
of a step; its cost, in milliseconds, is a quarter of the step's time without the compute time the stages report, less
half a raw round trip. The goal is that of links without a tunnel. (`labs.relayed_hop` has frames over a relay.)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zmq

from benchmarks.emulated import open_sleeper, run_node
from benchmarks.record import describe_run, make_parser, write_report
from parallax_core.api import (
    Draw,
    Edit,
    Epoch,
    LayerRange,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageLost,
    Tensor,
    Transport,
    TransportPlan,
)
from parallax_core.contracts.progress import Progress
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.session import WorkerSession
from parallax_core.wire.codec import encode
from parallax_core.wire.membership import Assign
from parallax_core.wire.messages import Failure, Result, Step
from parallax_transport_lattica.transport import LatticaTransport
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip

BATCHES, ROADS = (1, 8, 64), ("ipc", "tcp", "lattica")
WIDTH, NUM_STAGES = 576, 3
TURNS, STEPS, WARM_UP = 5, 200, 20
"""Turns, steps of each, and steps before them."""
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
GOAL_MS, TIMEOUT_S = 0.5, 10.0
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
while True:
    parts = socket.recv_multipart(copy=False)
    socket.send_multipart(parts, copy=False)
"""


def make_transport(node: str, listen: str) -> Transport:
    plan = TransportPlan(node=node, listen=listen, timeout_s=TIMEOUT_S)
    return (LatticaTransport if listen.startswith("lattica:") else ZmqTransport)(plan)


def place(road: str, folder: Path, node: str) -> str:
    return place_local(folder, node) if road == "ipc" else f"{road}://127.0.0.1:0"


@asynccontextmanager
async def open_stages(road: str, folder: Path) -> AsyncIterator[RemoteExecutor]:
    os.environ["PARALLAX_HOME"] = str(folder)
    registry = equip(NodeRegistry(make_transport("head", place(road, folder, "head")), "head"))
    await registry.start()

    def command(node: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.hop", "--node", node, registry.address, place(road, folder, node)]

    roles = [
        StageAssignment(stage=index, layers=LayerRange(index, index + 1), model="sleep", node=f"stage-{index}")
        for index in range(NUM_STAGES)
    ]
    executor = RemoteExecutor(roles, NodeSupply(registry, WorkerSupervisor(command)))
    try:
        await executor.open()
        yield executor
    finally:
        await executor.close()
        await registry.stop()


def open_stage(assign: Assign, _: Progress) -> Stage:
    return open_sleeper(assign, NUM_STAGES, WIDTH, lambda _: 0.0)


class Runner:
    """Sends steps with ``num_rows`` rows, and waits for the results."""

    def __init__(self, executor: RemoteExecutor, num_rows: int, epoch: int) -> None:
        self._executor, self._num_rows, self._epoch = executor, num_rows, Epoch(epoch)
        self._step = 0

    async def run(self) -> tuple[float, float]:
        """Run a step; return the seconds until the last stage answered, and the seconds that the stages computed."""
        edits: tuple[Edit, ...] = ()
        if self._step == 0:
            edits = tuple(Open(SeqId(number), SPEC) for number in range(self._num_rows))
        rows = make_rows(self._num_rows, self._step)
        self._step += 1
        begun = time.perf_counter()
        await self._executor.channels[0].send(Step(self._epoch, self._step, edits, rows))
        computed = (await receive_result(self._executor, NUM_STAGES - 1)).seconds
        took = time.perf_counter() - begun
        for stage in range(NUM_STAGES - 1):
            computed += (await receive_result(self._executor, stage)).seconds
        return took, computed


def make_rows(num_rows: int, start: int) -> tuple[Row, ...]:
    return tuple(Row(SeqId(number), start, (7,), (Draw(0),)) for number in range(num_rows))


async def receive_result(executor: RemoteExecutor, stage: int) -> Result:
    while not isinstance(message := await executor.channels[stage].receive(), Result):
        if isinstance(message, Failure):
            raise StageLost(message.message)
    return message


def count_bytes(num_rows: int) -> int:
    hidden = Tensor("float32", (num_rows, WIDTH), bytes(4 * WIDTH * num_rows))
    return encode(Step(Epoch(0), 1, (), make_rows(num_rows, 100), (hidden,))).num_bytes


class RawSocket:
    """Makes round trips with pyzmq alone."""

    def __init__(self, road: str, folder: Path, port: int) -> None:
        address = f"ipc://{folder}/raw-{port}.sock" if road == "ipc" else f"tcp://127.0.0.1:{port}"
        self._echo = subprocess.Popen([sys.executable, "-c", ECHO, address])
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)

    def run(self, payload: bytes) -> float:
        begun = time.perf_counter()
        self._socket.send_multipart([payload], copy=False)
        self._socket.recv_multipart(copy=False)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._echo.kill()
        self._echo.wait()
        self._socket.close()
        self._context.term()


def pick(times: list[float], share: float) -> float:
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


async def measure(runner: Runner, raw: RawSocket, batch: int, turns: int) -> dict[str, Any]:
    payload, steps, bare, trips = bytes(count_bytes(batch)), list[float](), list[float](), list[float]()
    for _ in range(WARM_UP):
        await runner.run()
        raw.run(payload)
    for _ in range(turns):
        for _ in range(STEPS):
            took, computed = await runner.run()
            steps.append(took)
            bare.append(took - computed)
        trips += [raw.run(payload) for _ in range(STEPS)]
    hops = NUM_STAGES + 1
    figures = {
        "step_p50_ms": pick(steps, 0.5),
        "raw_p50_ms": pick(trips, 0.5),
        "hop_cost_p50_ms": pick(bare, 0.5) / hops - pick(trips, 0.5) / 2,
        "goal_ms": GOAL_MS,
        "hop_p99_ms": pick(bare, 0.99) / hops,
        "p99_ratio": pick(bare, 0.99) / hops / pick(trips, 0.99),
    }
    return {"rows": batch, "bytes": len(payload), **{name: round(each, 3) for name, each in figures.items()}}


async def measure_road(road: str, folder: Path, port: int, turns: int) -> list[dict[str, Any]]:
    rows = []
    async with open_stages(road, folder) as executor:
        raw = RawSocket(road, folder, port)
        try:
            for number, batch in enumerate(BATCHES):
                rows.append({"road": road, **await measure(Runner(executor, batch, number), raw, batch, turns)})
                print(rows[-1], flush=True)
        finally:
            raw.close()
    return rows


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        node, connect, listen = options.node
        transport = make_transport(node, listen)
        asyncio.run(run_node(transport, WorkerSession(NodeServices(transport), node, open_stage), connect))
        return
    found: list[dict[str, Any]] = []
    for number, road in enumerate(ROADS):
        with tempfile.TemporaryDirectory(prefix="hop-") as name:
            found += asyncio.run(measure_road(road, Path(name), 45870 + number, options.turns))
    write_report(options.out, {"hops": found, **describe_run(["benchmarks.hop"], ["numpy", "pyzmq"])})


if __name__ == "__main__":
    main()
