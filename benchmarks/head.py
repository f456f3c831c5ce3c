"""What the head costs per step: plan, the wire there and back, and absorb.

    python benchmarks/head.py --out benchmarks/results/head.json

A head with 1, 32 and 256 running requests, one step of which is a decode of each. The stage is left out: its answers
are made up. Over the steps: the least, the median and the 90th percentile, in milliseconds. On a machine that does
something else beside, the least is what the head costs; the goals are for the median.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from parallax_core.api import (
    Drawn,
    Epoch,
    LayerRange,
    LeaseId,
    PoolInfo,
    Request,
    RequestId,
    Sampling,
    StageInfo,
    StageResult,
)
from parallax_core.engine.head import Head, Limits
from parallax_core.engine.head import Step as Planned
from parallax_core.wire.codec import decode, encode
from parallax_core.wire.messages import Result, Step

GOALS_MS = {1: 0.3, 32: 1.0, 256: 3.0}
PROMPT, CONTEXT = 500, 8192
WARM_UP, STEPS = 20, 200

INFO = StageInfo(
    layers=LayerRange(0, 1),
    num_layers=1,
    vocab_size=50_000,
    context_length=CONTEXT,
    max_batch_tokens=1024,
    pools=(PoolInfo(kind="full", page_size=16, num_pages=400_000),),
    device="none",
    dtype="none",
    weight_bytes=0,
    weights_version="1",
)


def make_head(num_requests: int) -> Head:
    """Return a head whose requests have all been prefilled."""
    head = Head(
        [INFO], lambda tokens: " word" * len(tokens), Limits(max_running=num_requests, max_waiting=num_requests)
    )
    for number in range(num_requests):
        prompt = (number, *range(PROMPT))
        request = Request(id=RequestId(str(number)), prompt=prompt, max_tokens=None, sampling=Sampling())
        head.accept(request, 0.0)
    while (step := head.plan(0.0)) is not None:
        head.absorb(answer(step, 0), 0.0)
        if len(step.batch.rows) == num_requests and all(len(row.tokens) == 1 for row in step.batch.rows):
            break
    head.take_deltas()
    return head


def answer(step: Planned, token: int) -> StageResult:
    """Return made-up answers to every output of a step."""
    return StageResult(tuple(Drawn((token,)) for row in step.batch.rows for _ in row.outputs))


def run_step(head: Head, token: int) -> None:
    """Run one step as a pipeline of one remote stage would, without the stage."""
    step = head.plan(1.0)
    assert step is not None
    sent = Step(LeaseId(0), Epoch(step.epoch), step.batch.step, step.edits, step.batch.rows)
    received = decode(encode(sent))
    assert isinstance(received, Step)
    answers = tuple(Drawn((token,)) for row in received.rows for _ in row.outputs)
    result = decode(encode(Result(LeaseId(0), Epoch(step.epoch), step.batch.step, 0, answers)))
    assert isinstance(result, Result)
    head.absorb(StageResult(tuple(result.answers)), 1.0)
    head.take_deltas()


def measure(num_requests: int) -> dict[str, Any]:
    """Return the least, the median and the 90th percentile of a step, in milliseconds."""
    head = make_head(num_requests)
    times = []
    for number in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        run_step(head, number)
        times.append((time.perf_counter() - begun) * 1e3)
    kept = sorted(times[WARM_UP:])
    median, p90 = statistics.median(kept), kept[int(len(kept) * 0.9)]
    return {
        "requests": num_requests,
        "least_ms": round(kept[0], 3),
        "median_ms": round(median, 3),
        "p90_ms": round(p90, 3),
        "goal_ms": GOALS_MS[num_requests],
    }


def main() -> None:
    """Measure, print, and write with what a number needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    found = {
        "steps": [measure(num_requests) for num_requests in GOALS_MS],
        "commit": commit.stdout.strip(),
        "command": "python benchmarks/head.py",
        "machine": {"system": platform.platform(), "python": platform.python_version()},
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
