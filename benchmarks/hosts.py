"""Measures whether a pipeline over two hosts with a slow link pays the link's delay once, or once per chunk.

    python -m benchmarks.hosts --out benchmarks/results/hosts.json

Stage 0 runs beside the head, stages 1 and 2 on the other host; traffic between the hosts passes a proxy that delays it
by 20 ms each way. The stages sleep. Decodes: the time per token, compared with the sum of compute time and delays.
Prefill: the time of a long prompt, in chunks, compared with a pipeline that is always full, and with one chunk per
round trip.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet import HEAD, FleetPlan, fleet
from benchmarks.record import describe_run, write_report
from parallax_core.api import Request, RequestId, Sampling
from parallax_core.node.pipeline.engine import PipelineEngine

DELAY_S = 0.020
COMPUTE_S = 0.020
NUM_STAGES = 3
CHUNK = 64
CHUNKS = 40
TOKENS = 40
TURNS = 3


@asynccontextmanager
async def proxy(delay_s: float, port: int) -> AsyncIterator[int]:
    """Forward connections to ``port`` of this machine with a delay each way; yield the port of the proxy."""
    tasks: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for one, other in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(forward(one, other, delay_s))
            tasks.add(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward data in order, each piece ``delay_s`` after it was read."""
    loop = asyncio.get_running_loop()
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await pending.get()
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            if not data:
                writer.close()
                return
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            pending.put_nowait((loop.time() + delay_s, data))
    pending.put_nowait((loop.time() + delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await delivering


def find_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ask(engine: PipelineEngine, name: str, num_prompt: int, num_output: int) -> tuple[float, float]:
    """Send a request; return the seconds to its first token, and the mean seconds between tokens."""
    request = Request(
        id=RequestId(name),
        prompt=tuple(token % 200 for token in range(num_prompt)),
        max_tokens=num_output,
        sampling=Sampling(temperature=0),
        salt=name,
    )
    begun = time.perf_counter()
    times = [time.perf_counter() async for delta in engine.submit(request) if delta.tokens]
    return times[0] - begun, (times[-1] - times[0]) / max(1, len(times) - 1)


async def measure(delay_s: float) -> dict[str, Any]:
    """Measure decodes and a long prompt with ``delay_s`` between the hosts, each way."""
    ports = {node: find_port() for node in (HEAD, "stage-1")}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        far = {node: await stack.enter_async_context(proxy(delay_s, port)) for node, port in ports.items()}
        plan = FleetPlan(
            seconds=(COMPUTE_S,) * NUM_STAGES,
            road="tcp",
            max_batch_tokens=CHUNK,
            reach={node: f"tcp://127.0.0.1:{port}" for node, port in far.items()},
            places={node: f"tcp://127.0.0.1:{port}" for node, port in ports.items()},
            near=frozenset({"stage-0"}),
        )
        executor = await stack.enter_async_context(fleet(plan, folder))
        engine = PipelineEngine(executor, lambda tokens: " word" * len(tokens))
        await engine.start()
        stack.push_async_callback(engine.stop)
        decodes = [(await ask(engine, f"decode {turn}", 4, TOKENS))[1] for turn in range(TURNS)]
        prefills = [(await ask(engine, f"prefill {turn}", CHUNK * CHUNKS, 1))[0] for turn in range(TURNS)]
    return summarize(delay_s, min(decodes), min(prefills))


def summarize(delay_s: float, decode_s: float, prefill_s: float) -> dict[str, Any]:
    """Return the measured times with the ideal ones and their ratios."""
    token_s = NUM_STAGES * COMPUTE_S + 2 * delay_s
    full_s = (CHUNKS + NUM_STAGES - 1) * COMPUTE_S + 2 * delay_s
    return {
        "delay_ms": 1000 * delay_s,
        "token_ms": round(1000 * decode_s, 2),
        "compute_and_hops_ms": 1000 * token_s,
        "token_ratio": round(decode_s / token_s, 3),
        "prefill_ms": round(1000 * prefill_s, 1),
        "full_pipeline_ms": round(1000 * full_s, 1),
        "prefill_ratio": round(prefill_s / full_s, 3),
        "a_chunk_a_round_trip_ms": round(1000 * CHUNKS * token_s, 1),
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found = [asyncio.run(measure(delay_s)) for delay_s in (0.0, DELAY_S, 4 * DELAY_S)]
    for row in found:
        print(row)
    write_report(out, {"hosts": found, **describe_run(["benchmarks.hosts"], ["pyzmq"])})


if __name__ == "__main__":
    main()
