"""Names what keeps a pipeline from answering more tokens per second."""

from __future__ import annotations

from itertools import pairwise

from parallax_cluster.placement.cost_model import CostModel, PipelineCost, count_batch
from parallax_core.api import Resource

MOSTLY = 0.8
"""A resource that is busy for this share of the time sets the pace: prompts that hold up other steps take the rest."""


def find_limit(
    costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...], cost: PipelineCost
) -> tuple[Resource, str]:
    """Return the resource that limits a pipeline with these times, and the node or link it belongs to.

    Of a single request it is what takes most of a token's time. If a stage or a link is busy most of the time, it is
    the limit. Else the pipeline waits for requests: more of them
    would help, unless most of the time of a token is spent on links, for which ``latency`` is returned, with the
    slowest.
    """
    if cost.num_requests <= 1:
        return _find_slowest(costs, order, cuts, cost)
    rate = cost.num_requests / cost.request_s
    names = [costs.nodes[node].name for node in order]
    if cost.link_s and max(cost.link_s) >= max(cost.stage_s) and max(cost.link_s) * rate >= MOSTLY:
        slowest = cost.link_s.index(max(cost.link_s))
        return "link", f"{names[slowest]} - {names[slowest + 1]}"
    slowest = cost.stage_s.index(max(cost.stage_s))
    is_filled = cost.num_requests > len(order) or len(order) == 1
    if is_filled and cost.stage_s[slowest] * rate >= MOSTLY:
        return _find_stage_limit(costs, order[slowest], (cuts[slowest], cuts[slowest + 1]), cost), names[slowest]
    computing_s = costs.num_decodes * _sum_decodes(costs, order, cuts, cost.num_requests)
    trips_s = [costs.find_link(*ends).round_trip_s for ends in pairwise(order)]
    if trips_s and cost.request_s > 2 * computing_s:
        slowest = trips_s.index(max(trips_s))
        return "latency", f"{names[slowest]} - {names[slowest + 1]}"
    return "concurrency", ""


def _find_slowest(
    costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...], cost: PipelineCost
) -> tuple[Resource, str]:
    """Return the stage or the link that takes most of the time of a token of a single request."""
    sums, names = costs.sum_decode(1.0), [costs.nodes[node].name for node in order]
    steps = [costs.measure_step(node, *cut, sums) for node, cut in zip(order, pairwise(cuts), strict=True)]
    links = [costs.find_link(*ends) for ends in pairwise(order)]
    hops = [
        (link.round_trip_s / 2, costs.problem.model.cross(cut) / link.bandwidth)
        for link, cut in zip(links, cuts[1:-1], strict=True)
    ]
    slowest = max(range(len(steps)), key=steps.__getitem__)
    if hops and sum(longest := max(hops, key=sum)) > steps[slowest]:
        rank = hops.index(longest)
        return "latency" if longest[0] > longest[1] else "link", f"{names[rank]} - {names[rank + 1]}"
    return _find_stage_limit(costs, order[slowest], (cuts[slowest], cuts[slowest + 1]), cost), names[slowest]


def _sum_decodes(costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...], num_requests: int) -> float:
    """Return the seconds that all stages compute for one decode step."""
    sums = costs.sum_decode(count_batch(len(order), num_requests))
    return sum(costs.measure_step(node, *cut, sums) for node, cut in zip(order, pairwise(cuts), strict=True))


def _find_stage_limit(costs: CostModel, node: int, cut: tuple[int, int], cost: PipelineCost) -> Resource:
    """Return which part of a stage's time for a request is the largest: computing, reading or overhead."""
    batch, speed = count_batch(len(cost.stage_s), cost.num_requests), costs.speeds[node]
    parts: dict[Resource, float] = {"compute": 0.0, "bandwidth": 0.0, "overhead": 0.0}
    for sums, share in ((costs.prefill, 1.0), (costs.sum_decode(batch), costs.num_decodes / batch)):
        compute_s = (sums.flops[cut[1]] - sums.flops[cut[0]]) * speed.flop_s
        read_s = (sums.bytes[cut[1]] - sums.bytes[cut[0]]) * speed.byte_s
        parts["compute" if compute_s > read_s else "bandwidth"] += share * max(compute_s, read_s)
        parts["overhead"] += share * costs.measure_fixed(node, *cut)
    return max(parts, key=lambda name: parts[name])


def find_fullest(costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...]) -> str:
    """Return the node with room for the fewest requests."""
    stages = zip(order, pairwise(cuts), strict=True)
    _, fullest = min((costs.count_fitting(node, *cut), node) for node, cut in stages)
    return costs.nodes[fullest].name
