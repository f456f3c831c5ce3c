"""Shares the requests of a goal among pipelines, and rates how good that is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from parallax_cluster.placement.cost_model import PipelineCost
from parallax_cluster.placement.pipeline import Pipeline
from parallax_core.api import ServingGoal

PORTIONS = 64
"""While layouts are compared, requests are shared out one by one, or in this number of portions if there are more."""
PORTIONS_EACH = 8
"""The portions for each pipeline, if those are more: with fewer, some would get none, and others too many."""
MOST_EXACT = 3000
"""Pipelines times requests squared up to which the best division is computed exactly."""
UNEVEN = 0.05
"""The relative gain for which some requests take longer than others."""
GAIN = 1e-6
"""Relative gains below this are ignored."""
Rating = tuple[float, float]
"""How good a placement is for the objective, and then how short its requests are; larger is better."""


class RequestShare(NamedTuple):
    """A number of requests of a pipeline, and what they add to the objective."""

    number: int
    value: float
    pipeline: Pipeline | None


NONE = RequestShare(0, 0.0, None)


def share_requests(pipelines: Sequence[Pipeline], goal: ServingGoal, unit: int = 1) -> list[int]:
    """Return the number of requests of each pipeline, as the router divides them, to whom they are weights.

    Each request goes where it is answered first, so that all take about as long, unless another division reaches more
    of the objective by a share of `UNEVEN`. Requests beyond what memory and limits allow wait and are left out.

    Args:
        pipelines: all that there are.
        goal: has the number of requests.
        unit: the number of requests that go together, where dividing them one by one takes long.
    """
    even, judge = _share_evenly(pipelines, goal, unit), _judge_by(goal)

    def rate(shares: Sequence[int]) -> float:
        value = sum(pipeline.value(share) for pipeline, share in zip(pipelines, shares, strict=True))
        return judge(value, sum(shares))

    least = rate(even) + UNEVEN * abs(rate(even))
    if goal.objective == "throughput" and _find_most(pipelines, even) <= least:
        return even
    is_exact = can_share_exactly(len(pipelines), goal.concurrency)
    best = _share_exactly(pipelines, goal) if is_exact else _level(pipelines, _share_greedily(pipelines, goal, unit))
    return best if rate(best) > least else even


def _find_most(pipelines: Sequence[Pipeline], shares: Sequence[int]) -> float:
    """Return more tokens per second than any division reaches: those of all pipelines that are full."""
    pairs = zip(pipelines, shares, strict=True)
    return sum(max(pipeline.value(pipeline.max_requests), pipeline.value(share)) for pipeline, share in pairs)


def _share_evenly(pipelines: Sequence[Pipeline], goal: ServingGoal, unit: int) -> list[int]:
    """Send each request where it is answered first.

    None would be answered earlier by another pipeline then (Wardrop, "Some theoretical aspects of road traffic
    research", 1952).
    """
    shares, left = [0] * len(pipelines), goal.concurrency
    queue = [(_finish(pipeline, unit), rank) for rank, pipeline in enumerate(pipelines) if pipeline.max_requests]
    heapify(queue)
    while left and queue:
        rank = queue[0][1]
        number = min(unit, left)
        shares[rank] += number
        left -= number
        heapreplace(queue, (_finish(pipelines[rank], shares[rank] + unit), rank))
    return [min(share, pipeline.max_requests) for share, pipeline in zip(shares, pipelines, strict=True)]


def _finish(pipeline: Pipeline, number: int) -> float:
    """Return the seconds of a request of a pipeline with ``number`` of them, of which those beyond its room wait."""
    most = pipeline.max_requests
    return pipeline.measure(min(number, most)).request_s * max(1.0, number / most)


def _share_exactly(pipelines: Sequence[Pipeline], goal: ServingGoal) -> list[int]:
    """Return the division that reaches most of the objective of those in which pipelines of a kind get the same."""
    groups = _group(pipelines)
    numbers = range(goal.concurrency + 1)
    choices = [[_offer_evenly(pipelines[ranks[0]], len(ranks), each) for each in numbers] for ranks in groups]
    shares = [0] * len(pipelines)
    for ranks, offer in zip(groups, share_offers(choices, goal), strict=True):
        _divide(offer.number, ranks, shares)
    return shares


def _level(pipelines: Sequence[Pipeline], shares: list[int]) -> list[int]:
    """Divide what pipelines of a kind have evenly among them."""
    for ranks in _group(pipelines):
        _divide(sum(shares[rank] for rank in ranks), ranks, shares)
    return shares


def _group(pipelines: Sequence[Pipeline]) -> list[list[int]]:
    """Return the ranks of pipelines of the same kind, for each kind."""
    groups: dict[Hashable, list[int]] = {}
    for rank, pipeline in enumerate(pipelines):
        groups.setdefault(pipeline.kind, []).append(rank)
    return list(groups.values())


def _divide(number: int, ranks: Sequence[int], shares: list[int]) -> None:
    """Give ``number`` requests to pipelines of a kind: to each the same, or one more."""
    for place, rank in enumerate(ranks):
        shares[rank] = (number + len(ranks) - 1 - place) // len(ranks)


def _offer_evenly(pipeline: Pipeline, count: int, number: int) -> RequestShare:
    """Return what requests add that are divided among pipelines like one, at most as many as these can have."""
    number = min(number, count * pipeline.max_requests)
    each, more = divmod(number, count)
    value = (count - more) * pipeline.value(each) + (more * pipeline.value(each + 1) if more else 0.0)
    return RequestShare(number, value, None)


def can_share_exactly(num_pipelines: int, concurrency: int) -> bool:
    """Return whether the best division of requests among pipelines is computed exactly."""
    return num_pipelines * concurrency**2 <= MOST_EXACT


def make_offers(choice: Sequence[Pipeline], numbers: Iterable[int]) -> list[RequestShare]:
    """Return the best of some pipelines for each of some numbers of requests, and for the most that each can have."""
    offers = [NONE]
    for number in sorted({*numbers, *(pipeline.max_requests for pipeline in choice)} - {0}):
        able = [pipeline for pipeline in choice if pipeline.max_requests >= number]
        if able:
            values = [pipeline.value(number) for pipeline in able]
            best = max(values)
            offers.append(RequestShare(number, best, able[values.index(best)]))
    return offers


def share_offers(choices: Sequence[Sequence[RequestShare]], goal: ServingGoal) -> list[RequestShare]:
    """Return an offer of each choice, such that all together reach most of the objective.

    By dynamic programming over the requests of the choices so far.
    """
    best: dict[int, tuple[float, tuple[RequestShare, ...]]] = {0: (0.0, ())}
    for offers in choices:
        longer: dict[int, tuple[float, tuple[RequestShare, ...]]] = {}
        for before, (value, chosen) in best.items():
            for offer in offers:
                number, total = before + offer.number, value + offer.value
                if number > goal.concurrency:
                    break
                if number not in longer or total > longer[number][0]:
                    longer[number] = total, (*chosen, offer)
        best = longer
    judge = _judge_by(goal)
    most = max(best, key=lambda number: (judge(best[number][0], number), number))
    return list(best[most][1])


def _judge_by(goal: ServingGoal) -> Callable[[float, int], float]:
    """Return a function of the value of all pipelines and the number of their requests, for the objective.

    For ``latency`` it is the negative of the mean seconds of a request, times N: if fewer requests are served than
    there are, others wait for them (Little, Operations Research 1961).
    """
    if goal.objective == "throughput":
        return lambda value, _: value
    return lambda value, number: value / number**2 if number else float("-inf")


def _share_greedily(pipelines: Sequence[Pipeline], goal: ServingGoal, unit: int) -> list[int]:
    """Give the next requests to the pipeline where they add most to the objective, each.

    One by one, this is the best division if each pipeline gains less by each further request (Fox, "Discrete
    optimization via marginal analysis", Management Science 1966).
    """
    judge, concurrency = _judge_by(goal), goal.concurrency
    shares, left, total = [0] * len(pipelines), concurrency, 0.0
    first = [(*pipeline.find_portion(0, unit, left), rank) for rank, pipeline in enumerate(pipelines)]
    gains = [(loss, rank, number) for loss, number, rank in first if number]
    heapify(gains)
    while left and gains:
        _, rank, number = gains[0]
        pipeline, share, number = pipelines[rank], shares[rank], min(number, left)
        more = pipeline.value(share + number) - pipeline.value(share)
        if judge(total + more, concurrency - left + number) < judge(total, concurrency - left):
            break
        total += more
        left -= number
        shares[rank] = share = share + number
        loss, number = pipeline.find_portion(share, unit, left)
        if number:
            heapreplace(gains, (loss, rank, number))
        else:
            heappop(gains)
    return shares


def rate_pipelines(pipelines: Sequence[Pipeline], goal: ServingGoal) -> Rating:
    """Return how good pipelines are for the objective; see `Rating`."""
    unit = max(1, goal.concurrency // max(PORTIONS, PORTIONS_EACH * len(pipelines)))
    shares = zip(pipelines, share_requests(pipelines, goal, unit), strict=True)
    return _rate([pipeline.measure(number) for pipeline, number in shares if number], goal)


def rate_offers(offers: Iterable[RequestShare], goal: ServingGoal) -> Rating:
    """Return how good pipelines with some requests are for the objective; see `Rating`."""
    return _rate([offer.pipeline.measure(offer.number) for offer in offers if offer.pipeline], goal)


def _rate(costs: Sequence[PipelineCost], goal: ServingGoal) -> Rating:
    if not costs:
        return 0.0, 0.0
    tokens_per_s, num_requests = sum(cost.tokens_per_s for cost in costs), sum(cost.num_requests for cost in costs)
    mean_s = sum(cost.num_requests * cost.request_s for cost in costs) / num_requests
    if goal.objective == "throughput":
        return tokens_per_s, -mean_s
    reached = min(1.0, tokens_per_s / goal.min_tokens_per_s) if goal.min_tokens_per_s else 1.0
    return reached, -mean_s * goal.concurrency / num_requests


def is_better(score: Rating, than: Rating, gain: float = GAIN) -> bool:
    """Return whether a score is better by more than a relative gain, by default by more than rounding errors."""
    for new, old in zip(score, than, strict=True):
        if abs(new - old) > gain * max(abs(new), abs(old)):
            return new > old
    return False
