"""Measures the CPU time of the head per step: deadlines, planning, the wire format both ways, and absorbing the result.

    python -m benchmarks.head --out benchmarks/results/head.json

A head has 1, 32, 256 or 1,024 running requests, and each step decodes one token of each, while 0, 1,000 or 10,000 other
requests wait, either for a free slot or for free pages. There is no stage: its answers are made up. Heads that differ
only in the number of waiting requests take turns, step by step. The figures are milliseconds of CPU time; on a busy
machine the least is the cost of the head. The goals are for the median; ``ratio`` is that of the least to that without
waiting requests, and should be at most 1.2.

``plans`` has the longest single plan in two hard cases: a prompt of 100,000 tokens that evicts 2,048 cached prompts,
and 1,024 answers that share their prompts and all need a page at once when none is free. Nothing else can run during a
plan; the goal is 50.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.record import describe_run, make_parser, write_report
from parallax_core.api import (
    Draw,
    Drawn,
    Epoch,
    LayerRange,
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
PROMPT, CONTEXT, PAGE = 500, 8192, 16
WARM_UP, STEPS = 20, 100
LONG, STORED = 100_000, 2048
"""Tokens of the long prompt, and the number of cached short prompts, of two pages each."""
MANY, ANSWERS = 1024, 128
"""Answers that run at once, and answers per request."""
MOST_PLAN_MS = 50
LARGE_PAGE = 1 + PROMPT + 2 + WARM_UP + STEPS
"""Tokens of a page so large that no request fills it in any step; two steps come before those that are measured."""
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


def open_head(info: StageInfo, limits: Limits) -> Head:
    return Head([info], lambda tokens: " word" * len(tokens), HeadOptions(limits=limits))


def make_head(num_running: int, num_waiting: int, *, has_pages: bool) -> Head:
    """Return a head whose running requests are all prefilled; others wait for a slot, or for pages."""
    info, max_running = INFO, num_running
    if not has_pages:
        pool = replace(INFO.pools[0], page_size=LARGE_PAGE, num_pages=num_running)
        info, max_running = replace(INFO, pools=(pool,)), num_running + 1
    head = open_head(info, Limits(max_running=max_running, max_waiting=num_running + num_waiting))
    for number in range(num_running):
        head.accept(make_request(number), 0.0)
    while (step := head.plan(0.0)) is not None:
        head.absorb(answer(step), 0.0)
        if len(step.batch.rows) == num_running and all(len(row.tokens) == 1 for row in step.batch.rows):
            break
    head.take_deltas()
    for number in range(num_running, num_running + num_waiting):
        head.accept(make_request(number), 1.0)
    return head


def make_request(number: int, prompt: Sequence[int] | None = None) -> Request:
    tokens = (number, *range(PROMPT)) if prompt is None else tuple(prompt)
    name = RequestId(str(number))
    return Request(id=name, prompt=tokens, max_tokens=None, sampling=Sampling(), timeout_s=86_400.0 + number)


def answer(step: PlannedStep) -> StageResult:
    draws = (output for row in step.batch.rows for output in row.outputs if isinstance(output, Draw))
    return StageResult(tuple(Drawn((0,) * draw.count) for draw in draws))


def run_step(head: Head, token: int) -> None:
    head.expire(1.0)
    step = head.plan(1.0)
    assert step is not None
    sent = Step(Epoch(step.epoch), step.batch.step, step.edits, step.batch.rows)
    received = decode(encode(sent))
    assert isinstance(received, Step)
    answers = tuple(Drawn((token,)) for row in received.rows for _ in row.outputs)
    result = decode(encode(Result(Epoch(step.epoch), step.batch.step, 0, answers)))
    assert isinstance(result, Result)
    head.absorb(StageResult(tuple(result.answers)), 1.0)
    head.take_deltas()
    head.hold_s(1.0)
    head.next_deadline()


def measure(num_running: int, *, has_pages: bool) -> list[dict[str, Any]]:
    heads = [make_head(num_running, num_waiting, has_pages=has_pages) for num_waiting in WAITING]
    times: list[list[float]] = [[] for _ in heads]
    for number in range(WARM_UP + STEPS):
        for kept, head in zip(times, heads, strict=True):
            begun = time.process_time()
            run_step(head, number)
            if number >= WARM_UP:
                kept.append((time.process_time() - begun) * 1e3)
    found = []
    for num_waiting, kept in zip(WAITING, map(sorted, times), strict=True):
        figures = {"least_ms": kept[0], "median_ms": statistics.median(kept), "p90_ms": kept[int(len(kept) * 0.9)]}
        figures |= {"goal_ms": GOALS_MS[num_running], "ratio": kept[0] / min(times[0])}
        case = {"requests": num_running, "waiting": num_waiting, "waiting_for": "a place" if has_pages else "pages"}
        found.append({**case, **{name: round(each, 3) for name, each in figures.items()}})
    return found


def time_plans(head: Head) -> dict[str, float]:
    times = [0.0]
    while True:
        begun = time.process_time()
        step = head.plan(2.0)
        times.append((time.process_time() - begun) * 1e3)
        if step is None:
            return {"longest_ms": round(max(times), 1), "plans": len(times) - 2, "goal_ms": MOST_PLAN_MS}
        head.absorb(answer(step), 2.0)


def measure_evictions() -> dict[str, Any]:
    pool = replace(INFO.pools[0], num_pages=LONG // PAGE + 1)
    info = replace(INFO, vocab_size=2 * LONG, context_length=2 * LONG, pools=(pool,))
    head = open_head(info, Limits(max_running=64))
    for number in range(STORED):
        head.accept(replace(make_request(number, range(number, number + 2 * PAGE - 1)), max_tokens=1), 0.0)
        if number % 64 == 0:
            time_plans(head)
    time_plans(head)
    head.accept(replace(make_request(-1, range(LONG)), max_tokens=1), 1.0)
    return {"case": "evictions", **time_plans(head)}


def measure_preemptions() -> dict[str, Any]:
    """Return the longest plan when all running answers need a page at once and none is free."""
    num_requests = MANY // ANSWERS
    pool = replace(INFO.pools[0], num_pages=num_requests * 2 + MANY + 1)
    head = open_head(replace(INFO, pools=(pool,)), Limits(max_running=MANY))
    for number in range(num_requests):
        request = make_request(number, (number, *range(2 * PAGE - 1)))
        head.accept(replace(request, n=ANSWERS, max_tokens=2 * PAGE), 0.0)
    return {"case": "preemptions", **time_plans(head), "preemptions": head.stats().preemptions}


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", choices=sorted(GOALS_MS), default=sorted(GOALS_MS))
    options = parser.parse_args()
    places = [each for rows in options.rows for each in measure(rows, has_pages=True)]
    steps = places + [each for rows in options.rows for each in measure(rows, has_pages=False)]
    plans = [measure_evictions(), measure_preemptions()]
    worst = max((each["ratio"] for each in steps if each["requests"] > 1), default=0.0)
    found = {"steps": steps, "plans": plans, "most_ratio": {"found": worst, "goal": 1.2}}
    print(json.dumps(found, indent=2))
    write_report(options.out, {**found, **describe_run(["benchmarks.head"])})


if __name__ == "__main__":
    main()
