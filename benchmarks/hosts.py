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
import math
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.fleet import HEAD, FleetPlan, fleet
from benchmarks.record import describe_run, write_report
from benchmarks.slow_links import Wire, find_port, pass_slowly
from parallax_core.api import Request, RequestId, Sampling
from parallax_core.node.pipeline.engine import PipelineEngine

DELAY_S = 0.020
COMPUTE_S = 0.020
NUM_STAGES = 3
CHUNK = 64
CHUNKS = 40
TOKENS = 40
TURNS = 3


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
    wire = Wire(delay_s, math.inf)
    ports = {node: find_port() for node in (HEAD, "stage-1")}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        far = {node: await stack.enter_async_context(pass_slowly(port, wire, wire)) for node, port in ports.items()}
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
