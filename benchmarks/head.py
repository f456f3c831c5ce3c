"""Measures the CPU time of the head per step: deadlines, planning, the wire format both ways, and absorbing the result.

    python -m benchmarks.head --out benchmarks/results/head.json

A head has 1, 32, 256 or 1,024 running requests, and each step decodes one token of each, while 0, 1,000 or 10,000 other
requests wait, either for a free slot or for free pages. There is no stage: its answers are made up. Heads that differ
only in the number of waiting requests take turns, step by step. The figures are the minimum, the median and the 90th
percentile over the steps, in milliseconds of CPU time, and the ratio of the minimum to that without waiting requests.
On a busy machine the minimum is the cost of the head. The goals are for the median; the ratio should be at most 1.2.

It also measures the longest single plan, in milliseconds of CPU time, in two hard cases: a prompt of 100,000 tokens
that evicts 2,048 cached prompts, and 1,024 answers that share their prompts and all need a page at once when none is
free. Nothing else can run during a plan; the goal is 50.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_core.api import (
    Draw,
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
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.wire.codec import decode, encode
from parallax_core.wire.messages import Result, Step

GOALS_MS = {1: 0.3, 32: 1.0, 256: 3.0, 1024: 12.0}
WAITING = (0, 1000, 10_000)
MOST_RATIO = 1.2
PROMPT, CONTEXT, PAGE = 500, 8192, 16
WARM_UP, STEPS = 20, 100
LONG, STORED = 100_000, 2048
"""Tokens of the long prompt, and the number of cached short prompts, of two pages each."""
MANY, ANSWERS = 1024, 128
"""Answers that run at once, and answers per request."""
MOST_PLAN_MS = 50
LARGE_PAGE = 1 + PROMPT + 2 + WARM_UP + STEPS
"""Tokens of a page so large that no request fills it in any step; two steps come before those that are measured."""
TIMEOUT_S = 86_400.0

INFO = StageInfo(
    layers=LayerRange(0, 1),
    num_layers=1,
    vocab_size=50_000,
    context_length=CONTEXT,
    max_batch_tokens=8192,
    pools=(PoolInfo(kind="full", page_size=PAGE, num_pages=400_000),),
    device="none",
    dtype="none",
    weight_bytes=0,
    weights_version="1",
)


def make_head(num_running: int, num_waiting: int, *, has_pages: bool = True) -> tuple[Head, float]:
    """Return a head whose running requests are all prefilled, and the microseconds to accept one waiting request.

    Args:
        num_running: running requests.
        num_waiting: waiting requests.
        has_pages: whether there are free pages, so that requests wait for a slot; otherwise they wait for pages.
    """
    info, max_running = INFO, num_running
    if not has_pages:
        pool = dataclasses.replace(INFO.pools[0], page_size=LARGE_PAGE, num_pages=num_running)
        info, max_running = dataclasses.replace(INFO, pools=(pool,)), num_running + 1
    limits = Limits(max_running=max_running, max_waiting=num_running + num_waiting)
    head = Head([info], join_words, HeadOptions(limits=limits))
    for number in range(num_running):
        head.accept(make_request(number), 0.0)
    while (step := head.plan(0.0)) is not None:
        head.absorb(answer(step, 0), 0.0)
        if len(step.batch.rows) == num_running and all(len(row.tokens) == 1 for row in step.batch.rows):
            break
    head.take_deltas()
    begun = time.process_time()
    for number in range(num_running, num_running + num_waiting):
        head.accept(make_request(number), 1.0)
    return head, (time.process_time() - begun) * 1e6 / max(num_waiting, 1)


def join_words(tokens: Sequence[int]) -> str:
    """Return a text with one word for each token."""
    return " word" * len(tokens)


def make_request(number: int) -> Request:
    """Return a request whose prompt shares no prefix with others."""
    prompt = (number, *range(PROMPT))
    return Request(
        id=RequestId(str(number)), prompt=prompt, max_tokens=None, sampling=Sampling(), timeout_s=TIMEOUT_S + number
    )


def answer(step: PlannedStep, token: int) -> StageResult:
    """Return made-up answers to the draws of a step."""
    draws = (output for row in step.batch.rows for output in row.outputs if isinstance(output, Draw))
    return StageResult(tuple(Drawn((token,) * draw.count) for draw in draws))


def run_step(head: Head, token: int) -> None:
    """Run one step as a pipeline with one remote stage would, without the stage."""
    head.expire(1.0)
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
    head.hold_s(1.0)
    head.next_deadline()


def measure(num_running: int, *, has_pages: bool) -> list[dict[str, Any]]:
    """Return the cost of a step for each number of waiting requests; the heads take turns."""
    made = [make_head(num_running, num_waiting, has_pages=has_pages) for num_waiting in WAITING]
    times: list[list[float]] = [[] for _ in made]
    for number in range(WARM_UP + STEPS):
        for kept, (head, _) in zip(times, made, strict=True):
            begun = time.process_time()
            run_step(head, number)
            kept.append((time.process_time() - begun) * 1e3)
    least = min(times[0][WARM_UP:])
    return [
        {
            "requests": num_running,
            "waiting": num_waiting,
            "waiting_for": "a place" if has_pages else "pages",
            **summarize(kept[WARM_UP:]),
            "goal_ms": GOALS_MS[num_running],
            "ratio": round(min(kept[WARM_UP:]) / least, 3),
            "accept_us": round(accept_us, 1),
        }
        for num_waiting, kept, (_, accept_us) in zip(WAITING, times, made, strict=True)
    ]


def time_plans(head: Head) -> dict[str, float]:
    """Run a head until it is idle; return its longest plan and the number of plans."""
    times = [0.0]
    while True:
        begun = time.process_time()
        step = head.plan(2.0)
        times.append((time.process_time() - begun) * 1e3)
        if step is None:
            return {"longest_ms": round(max(times), 1), "plans": len(times) - 2, "goal_ms": MOST_PLAN_MS}
        head.absorb(answer(step, 0), 2.0)


def measure_evictions() -> dict[str, Any]:
    """Return the longest plan when a long prompt evicts many cached short ones."""
    pool = dataclasses.replace(INFO.pools[0], num_pages=LONG // PAGE + 1)
    info = dataclasses.replace(INFO, vocab_size=2 * LONG, context_length=2 * LONG, pools=(pool,))
    head = Head([info], join_words, HeadOptions(limits=Limits(max_running=64)))
    for number in range(STORED):
        prompt = tuple(range(number, number + 2 * PAGE - 1))
        head.accept(dataclasses.replace(make_request(number), prompt=prompt, max_tokens=1), 0.0)
        if number % 64 == 0:
            time_plans(head)
    time_plans(head)
    head.accept(dataclasses.replace(make_request(-1), prompt=tuple(range(LONG)), max_tokens=1), 1.0)
    return {"case": "evictions", **time_plans(head)}


def measure_preemptions() -> dict[str, Any]:
    """Return the longest plan when all running answers need a page at once and none is free."""
    num_requests = MANY // ANSWERS
    pool = dataclasses.replace(INFO.pools[0], num_pages=num_requests * 2 + MANY + 1)
    head = Head([dataclasses.replace(INFO, pools=(pool,))], join_words, HeadOptions(limits=Limits(max_running=MANY)))
    for number in range(num_requests):
        request = dataclasses.replace(make_request(number), prompt=(number, *range(2 * PAGE - 1)))
        head.accept(dataclasses.replace(request, n=ANSWERS, max_tokens=2 * PAGE), 0.0)
    return {"case": "preemptions", **time_plans(head), "preemptions": head.stats().preemptions}


def summarize(times: list[float]) -> dict[str, float]:
    """Return the minimum, the median and the 90th percentile."""
    kept = sorted(times)
    median, p90 = statistics.median(kept), kept[int(len(kept) * 0.9)]
    return {"least_ms": round(kept[0], 3), "median_ms": round(median, 3), "p90_ms": round(p90, 3)}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", choices=sorted(GOALS_MS), default=sorted(GOALS_MS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    steps = [
        each for has_pages in (True, False) for rows in options.rows for each in measure(rows, has_pages=has_pages)
    ]
    found = {
        "steps": steps,
        "plans": [measure_evictions(), measure_preemptions()],
        "most_ratio": {"found": max(each["ratio"] for each in steps if each["requests"] > 1), "goal": MOST_RATIO},
        **describe_run(["benchmarks.head"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
