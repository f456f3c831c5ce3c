"""Compares the predicted speed of placements with the measured one, on emulated clusters of unequal nodes.

    python -m benchmarks.prediction --out benchmarks/results/prediction.json [--clusters 30]

For each random cluster, the default policy places a model, and the pipelines of its plan run: the real head, scheduler,
links, codec and worker processes, with stages that sleep (`benchmarks.emulated`) and links with delays and a bandwidth.
The planned number of users each send one request after the other, which gives tokens per second, the time to the first
token and the time per token. If a single node could hold the model, the best one is measured too: the plan must not be
slower. The cost of a hop without a delay is measured before each cluster, on a pipeline whose stages take no time, and
counts as the round trip of all links. Predictions are of the steady state, which the head reaches in minutes if prompts
wait for most of the time; here it does so in seconds (`GROWTH_S`). Finished clusters are kept in ``--out``: a run that
was ended continues where it was. 30 clusters take about 20 minutes. `benchmarks.quotas`
compares the predictions for a real model, on machines with quotas of processor time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from random import Random
from typing import Any, NamedTuple

from benchmarks.emulated import EmulatedPipeline, Wire, run_pipeline
from benchmarks.record import describe_run, make_parser, read_report, write_report
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import (
    ClusterProfile,
    DeviceProfile,
    LayerDemand,
    LayerRange,
    LinkProfile,
    ModelDemand,
    NodeProfile,
    PlacedStage,
    Placement,
    PlacementProblem,
    Request,
    RequestId,
    Sampling,
    ServingGoal,
)
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.placement import Estimate, Objective, PipelineEstimate
from parallax_core.engine import pacing

GOAL = 0.15
NUM_LAYERS, LAYER_BYTES, HIDDEN = 16, 10**8, 1024
PROMPT, OUTPUT = 128, 16
WARM_S = 6.0
"""The least seconds before the first request that is measured."""
LEAST_S, MOST_S = 8.0, 12.0
"""Seconds in which the measured requests are sent."""
GROWTH_S = 4.0
"""Takes the place of `parallax_core.engine.pacing.GROWTH_S`."""
MOE_SHARE = 0.3
"""The share of models with experts."""
NAMES = count()
GB = 10**9


class Speeds(NamedTuple):
    """Measured or predicted speeds."""

    tokens_per_s: float
    token_s: float
    """Seconds per token after the first."""
    ttft_s: float
    """Seconds to the first token, beside the other requests."""


def make_cluster(seed: int, hop_s: float) -> PlacementProblem:
    random = Random(seed)
    layer = LayerDemand(
        weights=LAYER_BYTES, read=LAYER_BYTES, flops=LAYER_BYTES, context_flops=20_000, kv=random.choice([2**14, 2**16])
    )
    if random.random() < MOE_SHARE:
        experts = int(0.75 * LAYER_BYTES)
        layer = dataclasses.replace(
            layer,
            read=LAYER_BYTES - experts,
            flops=LAYER_BYTES // 2,
            experts=experts,
            num_experts=16,
            num_active_experts=2,
        )
    layers = [layer] * NUM_LAYERS
    layers[-1] = dataclasses.replace(layer, draw_flops=LAYER_BYTES)
    sites = ["home", "office"][: random.choice([1, 2, 2])]
    nodes = tuple(
        NodeProfile(name=f"node {rank}", device=_make_device(random), site=random.choice(sites))
        for rank in range(random.randint(2, 5))
    )
    ends = [(one, one) for one in sites] + list(pairwise(sites))
    links = tuple(
        LinkProfile(
            ends=each,
            round_trip_s=hop_s + (random.choice([0.0, 0.002]) if each[0] == each[1] else random.uniform(0.01, 0.06)),
            bandwidth=random.choice([2.5e6, 1.25e7, 1.25e8]),
        )
        for each in ends
    )
    objective: Objective = random.choice(["throughput", "throughput", "latency"])
    goal = ServingGoal(
        prompt_tokens=PROMPT, output_tokens=OUTPUT, concurrency=random.choice([1, 4, 8, 12]), objective=objective
    )
    problem = PlacementProblem(
        cluster=ClusterProfile(nodes=nodes, links=links),
        model=ModelDemand(layers=tuple(layers), hidden=HIDDEN),
        goal=goal,
    )
    fits = sum(node.device.memory for node in nodes) > 1.5 * NUM_LAYERS * LAYER_BYTES
    return problem if fits else make_cluster(seed + 10_000, hop_s)


def _make_device(random: Random) -> DeviceProfile:
    bandwidth = random.choice([0.5, 1, 1.5, 2, 4]) * 1e10
    return DeviceProfile(
        memory=int(random.choice([0.7, 1.0, 1.4, 2.4, 3.2]) * GB),
        flops=bandwidth * random.choice([10, 20, 40]),
        bandwidth=bandwidth,
        step_s=random.choice([0.0, 0.002]),
        layer_s=random.choice([0.0, 0.0005]),
    )


def make_pipeline(problem: PlacementProblem, stages: Sequence[PlacedStage], hop_s: float) -> EmulatedPipeline:
    """Return a pipeline whose links have what is left of their round trips without the cost of a hop."""
    costs = PlacementEstimator(problem).costs
    indices = [next(i for i, node in enumerate(costs.nodes) if node.name == stage.node) for stage in stages]

    def make_wire(one: int, other: int) -> Wire:
        link = costs.find_link(one, other)
        return Wire(max(0.0, link.round_trip_s - hop_s) / 2, link.bandwidth)

    return EmulatedPipeline(
        stages=tuple(stages),
        devices=tuple(costs.nodes[index].device for index in indices),
        hops=tuple(make_wire(*ends) for ends in pairwise(indices)),
        back=make_wire(indices[-1], indices[0]),
        model=problem.model,
    )


async def ask(engine: Engine, num_prompt: int, num_output: int) -> list[float]:
    """Send a request whose prompt shares nothing with others; return when it was sent, and when each token came."""
    number = next(NAMES)
    request = Request(
        id=RequestId(str(number)),
        prompt=tuple((number * 7 + place) % 200 for place in range(num_prompt)),
        max_tokens=num_output,
        sampling=Sampling(temperature=0),
        salt=str(number),
    )
    times = [time.perf_counter()]
    async for delta in engine.submit(request):
        times += [time.perf_counter()] * len(delta.tokens)
    if len(times) != num_output + 1:
        message = f"a request got {len(times) - 1} tokens"
        raise RuntimeError(message)
    return times


def draw_lengths(mean: int, seed: int) -> Iterator[int]:
    """Yield numbers of tokens in pairs with a given mean: single ones would shift the figures of a short run."""
    random = Random(seed)
    while True:
        length = random.randint(mean // 2, 3 * mean // 2)
        yield length
        yield 2 * mean - length


async def load(engine: Engine, goal: ServingGoal, num_users: int, request_s: float) -> Speeds:
    """Measure the steady state of users who each send one request after the other.

    Answers have between half and one and a half times the tokens of the goal, so that users do not fall into step;
    they come in pairs whose mean is that of the goal.
    Users go on until all requests that were sent in the measured time have ended. By Little's law, requests per second
    are users over the time of a request: of one with the mean length, since few may have been measured.
    """
    lengths, begun = draw_lengths(goal.output_tokens, num_users), time.perf_counter()
    first = begun + max(request_s, WARM_S)
    last = first + min(MOST_S, max(LEAST_S, 2 * request_s))
    measured: list[list[float]] = []
    num_open = num_users

    async def use(rank: int) -> None:
        nonlocal num_open
        await asyncio.sleep(rank / num_users * request_s)
        while time.perf_counter() < last:
            await send()
        num_open -= 1
        while num_open:
            await send()

    async def send() -> None:
        sent = time.perf_counter()
        answer = await ask(engine, goal.prompt_tokens, next(lengths))
        if first <= sent < last:
            measured.append(answer)

    await asyncio.gather(*map(use, range(num_users)))
    num_gaps = sum(len(each) - 2 for each in measured)
    ttft_s = statistics.fmean(each[1] - each[0] for each in measured)
    token_s = sum(each[-1] - each[1] for each in measured) / num_gaps
    request_s = ttft_s + (goal.output_tokens - 1) * token_s
    return Speeds(num_users * goal.output_tokens / request_s, token_s, ttft_s)


async def measure_placement(problem: PlacementProblem, placement: Placement, hop_s: float) -> list[Speeds]:
    async def measure(stages: Sequence[PlacedStage], predicted: PipelineEstimate) -> Speeds:
        async with run_pipeline(make_pipeline(problem, stages, hop_s)) as engine:
            return await load(engine, problem.goal, predicted.num_requests, predicted.request_s)

    estimate = PlacementEstimator(problem).estimate(placement)
    pairs = zip(placement.pipelines, estimate.pipelines, strict=True)
    return await asyncio.gather(*(measure(*pair) for pair in pairs if pair[1].num_requests))


def find_best_single(problem: PlacementProblem) -> Placement | None:
    """Return the placement on the one node that is predicted to be best, None if none holds the model."""
    estimator, found = PlacementEstimator(problem), list[tuple[float, Placement]]()
    for node in problem.cluster.nodes:
        placement = Placement(((PlacedStage(node.name, LayerRange(0, len(problem.model.layers))),),))
        try:
            estimate = estimator.estimate(placement)
        except ValueError:
            continue
        by_time = problem.goal.objective == "latency"
        found.append((-estimate.response_s if by_time else estimate.tokens_per_s, placement))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def measure_hop() -> float:
    """Return the seconds that a hop between two processes takes without a delay, there and back."""
    model = ModelDemand(layers=(LayerDemand(weights=1, read=1, flops=1),) * 2, hidden=HIDDEN)
    device, none = DeviceProfile(memory=GB, flops=1e15, bandwidth=1e15), Wire(0.0, 1e12)
    stages = tuple(PlacedStage(f"node {rank}", LayerRange(rank, rank + 1)) for rank in range(2))
    plan = EmulatedPipeline(stages=stages, devices=(device,) * 2, hops=(none,), back=none, model=model)

    async def run() -> float:
        async with run_pipeline(plan) as engine:
            gaps = [(t[-1] - t[1]) / (len(t) - 2) for t in [await ask(engine, 4, 32) for _ in range(5)]]
        return statistics.median(gaps)

    return asyncio.run(run())


def compare_cluster(seed: int, hop_s: float) -> dict[str, Any]:
    problem = make_cluster(seed, hop_s)
    estimator = PlacementEstimator(problem)
    placement = SearchPlacement().place(problem, estimator)
    estimate = estimator.estimate(placement)
    measured = asyncio.run(measure_placement(problem, placement, hop_s))
    served = [each for each in estimate.pipelines if each.num_requests]
    predicted = [Speeds(each.tokens_per_s, each.token_s, each.ttft_s) for each in served]
    rows = [
        {"predicted": old._asdict(), "measured": new._asdict(), "errors": find_errors(old, new)}
        for old, new in zip(predicted, measured, strict=True)
    ]
    single = find_best_single(problem)
    speed, gain = rate(problem.goal, estimate, measured), None
    if single is not None and single != placement:
        alone = asyncio.run(measure_placement(problem, single, hop_s))
        gain = speed / rate(problem.goal, estimator.estimate(single), alone)
    return {
        "hop_s": hop_s,
        "nodes": len(problem.cluster.nodes),
        "stages": [len(stages) for stages in placement.pipelines],
        "requests": [each.num_requests for each in estimate.pipelines],
        "objective": problem.goal.objective,
        "limit": [each.limit for each in estimate.pipelines],
        "pipelines": rows,
        "tokens_per_s": sum(each.tokens_per_s for each in measured),
        "gain_over_single": gain,
    }


def rate(goal: ServingGoal, estimate: Estimate, measured: Sequence[Speeds]) -> float:
    """Return the measured objective of a placement: tokens per second, or requests per second of their mean time.

    The mean time of a request includes what it waits if fewer are served at the same time than there are, as
    `Estimate.response_s` does.
    """
    if goal.objective == "throughput":
        return sum(each.tokens_per_s for each in measured)
    numbers = [each.num_requests for each in estimate.pipelines if each.num_requests]
    times_s = [num * goal.output_tokens / each.tokens_per_s for num, each in zip(numbers, measured, strict=True)]
    mean_s = sum(num * each_s for num, each_s in zip(numbers, times_s, strict=True)) / sum(numbers)
    return sum(numbers) / (mean_s * goal.concurrency)


def find_errors(predicted: Speeds, measured: Speeds) -> dict[str, float]:
    return {name: round(old / new - 1, 4) for name, old, new in zip(Speeds._fields, predicted, measured, strict=True)}


def summarize(clusters: dict[str, Any]) -> dict[str, Any]:
    """Return the median and the worst error of each speed, and how plans compare with the best single node."""
    rows = [row["errors"] for each in clusters.values() for row in each["pipelines"]]
    errors = {name: sorted(abs(row[name]) for row in rows) for name in Speeds._fields}
    gains = [each["gain_over_single"] for each in clusters.values() if each["gain_over_single"]]
    return {
        "clusters": len(clusters),
        "pipelines": len(rows),
        "median_error": {name: statistics.median(each) for name, each in errors.items()},
        "worst_error": {name: each[-1] for name, each in errors.items()},
        "least_gain_over_single": min(gains, default=None),
        "goal": GOAL,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and write the report; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--clusters", type=int, default=30)
    options = parser.parse_args(arguments)
    report = read_report(options.out)
    clusters: dict[str, Any] = report.get("emulated", {})
    home = tempfile.TemporaryDirectory(prefix="prediction-")
    os.environ["PARALLAX_HOME"] = home.name
    pacing.GROWTH_S = GROWTH_S
    missing = [seed for seed in range(options.clusters) if str(seed) not in clusters]
    for seed in missing:
        clusters[str(seed)] = found = compare_cluster(seed, measure_hop())
        print(seed, found["stages"], found["requests"], [row["errors"] for row in found["pipelines"]], flush=True)
        command = ["benchmarks.prediction", "--clusters", str(options.clusters)]
        report = describe_run(command) | {"emulated": clusters, "summary": summarize(clusters)}
        write_report(options.out, report)
    summary = summarize(clusters)
    print(summary)
    passed = max(summary["median_error"][name] for name in ("tokens_per_s", "token_s")) <= GOAL
    return 0 if passed and (summary["least_gain_over_single"] or 1) >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
