"""Measures the overhead of a hop between stage processes, beyond the wire and the compute time of the stages.

    python -m benchmarks.hop --out benchmarks/results/hop.json

Three stages that compute nothing run in their own processes on loopback. One step at a time, of 1, 8 or 64 decode rows,
goes from the head through all of them and back, with float32 hidden states of width 576 between the stages. In turns
with it runs `raw`: a message of the same size there and back between two processes, by blocking calls of pyzmq, without
checks and without the encryption that links over TCP have; for `lattica`, over TCP. A hop is one of the four transfers
of a step; its cost, in milliseconds, is a quarter of the step's time without the compute time the stages report, less
half a raw round trip. The goal is that of links without a tunnel.
The report also has the bytes of a row in the header of a step, at a short and a long context; and the time to
convert hidden states of 32 rows of 4,096 numbers from each dtype to each other, in turns with `torch`: the minimum of
many calls, in milliseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import zmq

from benchmarks.fleet import FleetPlan, fleet
from benchmarks.record import describe_run, write_report
from parallax_core.api import Draw, Edit, Epoch, Open, Row, Sampling, SeqId, SequenceSpec, StageLost, Tensor
from parallax_core.contracts.tensor import FLOATS
from parallax_core.node.dtypes import convert
from parallax_core.node.executor.base import LEASE
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Failure, Result, Step

BATCHES = (1, 8, 64)
ROADS = ("ipc", "tcp", "lattica")
WIDTH = 576
NUM_STAGES = 3
TURNS = 5
STEPS = 200
"""Steps of one turn."""
WARM_UP = 20
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
GOAL_MS = 0.5
CONVERTED, CONVERT_GOAL_MS = (32, 4096), 1.0
CALLS = 100


class Runner:
    """Sends steps with ``num_rows`` rows, and waits for the results."""

    def __init__(self, executor: RemoteExecutor, num_rows: int, epoch: int) -> None:
        self._executor = executor
        self._num_rows = num_rows
        self._epoch = Epoch(epoch)
        self._step = 0

    async def run(self) -> tuple[float, float]:
        """Run a step; return the seconds until the last stage answered, and the seconds that the stages computed."""
        edits: tuple[Edit, ...] = ()
        if self._step == 0:
            edits = tuple(Open(SeqId(number), SPEC) for number in range(self._num_rows))
        rows = make_rows(self._num_rows, self._step)
        self._step += 1
        begun = time.perf_counter()
        await self._executor.channels[0].send(Step(LEASE, self._epoch, self._step, edits, rows))
        computed = (await receive_result(self._executor, NUM_STAGES - 1)).seconds
        took = time.perf_counter() - begun
        for stage in range(NUM_STAGES - 1):
            computed += (await receive_result(self._executor, stage)).seconds
        return took, computed


def make_rows(num_rows: int, start: int) -> tuple[Row, ...]:
    """Return a decode row for each of ``num_rows`` sequences, at position ``start``."""
    return tuple(Row(SeqId(number), start, (7,), (Draw(0),)) for number in range(num_rows))


async def receive_result(executor: RemoteExecutor, stage: int) -> Result:
    """Return the next result of a stage."""
    while not isinstance(message := await executor.channels[stage].receive(), Result):
        if isinstance(message, Failure):
            raise StageLost(message.message)
    return message


def count_bytes(num_rows: int) -> int:
    """Return the bytes of a step message between two stages."""
    hidden = Tensor("float32", (num_rows, WIDTH), bytes(4 * WIDTH * num_rows))
    return encode(Step(LEASE, Epoch(0), 1, (), make_rows(num_rows, 100), (hidden,))).num_bytes


def count_row_bytes(start: int) -> float:
    """Return the bytes that each additional row takes in the header of a step."""
    one, many = (len(encode(Step(LEASE, Epoch(0), 1, (), make_rows(count, start))).header) for count in (1, 65))
    return (many - one) / 64


ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
while True:
    parts = socket.recv_multipart(copy=False)
    socket.send_multipart(parts, copy=False)
"""


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
        """Send ``payload`` there and back, and return the seconds it took."""
        begun = time.perf_counter()
        self._socket.send_multipart([payload], copy=False)
        self._socket.recv_multipart(copy=False)
        return time.perf_counter() - begun

    def close(self) -> None:
        """End the echo process, and close the socket."""
        self._echo.kill()
        self._echo.wait()
        self._socket.close()
        self._context.term()


def pick(times: list[float], share: float) -> float:
    """Return the quantile ``share`` of ``times``, in milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


async def measure_road(road: str, folder: Path, port: int) -> list[dict[str, Any]]:
    """Measure all batch sizes over ``ipc``, ``tcp`` or ``lattica``."""
    rows = []
    async with fleet(FleetPlan(seconds=(0.0,) * NUM_STAGES, road=road, width=WIDTH), folder) as executor:
        await executor.open()
        raw = RawSocket(road, folder, port)
        try:
            for number, batch in enumerate(BATCHES):
                rows.append(await measure(Runner(executor, batch, number), raw, batch))
                print(road, rows[-1], flush=True)
        finally:
            raw.close()
    return [{"road": road, **row} for row in rows]


async def measure(runner: Runner, raw: RawSocket, batch: int) -> dict[str, Any]:
    """Measure steps of one size, in turns with raw round trips of the same size."""
    payload = bytes(count_bytes(batch))
    steps: list[float] = []
    bare: list[float] = []
    trips: list[float] = []
    for _ in range(WARM_UP):
        await runner.run()
        raw.run(payload)
    for _ in range(TURNS):
        for _ in range(STEPS):
            took, computed = await runner.run()
            steps.append(took)
            bare.append(took - computed)
        trips += [raw.run(payload) for _ in range(STEPS)]
    hops = NUM_STAGES + 1
    return {
        "rows": batch,
        "bytes": len(payload),
        "step_p50_ms": round(pick(steps, 0.5), 3),
        "raw_p50_ms": round(pick(trips, 0.5), 3),
        "hop_cost_p50_ms": round(pick(bare, 0.5) / hops - pick(trips, 0.5) / 2, 3),
        "goal_ms": GOAL_MS,
        "hop_p99_ms": round(pick(bare, 0.99) / hops, 3),
        "raw_p99_ms": round(pick(trips, 0.99), 3),
        "p99_ratio": round(pick(bare, 0.99) / hops / pick(trips, 0.99), 2),
    }


def measure_conversions() -> list[dict[str, Any]]:
    """Measure the conversion between each pair of dtypes, on one thread."""
    torch.set_num_threads(1)
    rows = []
    for here, there in permutations(sorted(FLOATS), 2):
        given = torch.randn(CONVERTED).to(getattr(torch, here))
        tensor = Tensor(here, CONVERTED, given.view(torch.uint8).numpy().tobytes())
        ours, theirs = [], []
        for _ in range(CALLS):
            begun = time.perf_counter()
            convert(tensor, there)
            middle = time.perf_counter()
            given.to(getattr(torch, there))
            ours.append(middle - begun)
            theirs.append(time.perf_counter() - middle)
        took, torch_took = 1000 * min(ours), 1000 * min(theirs)
        times = {"ms": round(took, 3), "torch_ms": round(torch_took, 3), "ratio": round(took / torch_took, 1)}
        rows.append({"from": here, "to": there, **times, "goal_ms": CONVERT_GOAL_MS})
        print("convert", rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found: list[dict[str, Any]] = []
    for number, road in enumerate(ROADS):
        with tempfile.TemporaryDirectory(prefix="hop-") as name:
            found += asyncio.run(measure_road(road, Path(name), 45870 + number))
    sizes = {f"context of {start}": count_row_bytes(start) for start in (100, 100_000)}
    print(sizes)
    measured = {
        "hops": found,
        "header_bytes_per_row": sizes,
        "conversions": measure_conversions(),
    }
    report = {**measured, **describe_run(["benchmarks.hop"], ["numpy", "pyzmq", "torch"])}
    write_report(out, report)


if __name__ == "__main__":
    main()
