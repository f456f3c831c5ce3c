"""Builds first layouts for the search: nodes dealt to a number of pipelines, near ones together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heapreplace
from itertools import pairwise, product

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.linked import grow_pipelines

Layout = tuple[tuple[int, ...], ...]
"""The nodes of each pipeline, in order. Other nodes are idle."""
MOST_STAGES = 16
"""No first layout has longer pipelines: the steps in flight grow with the stages, and the requests in each get few."""
FEW = (2, 3)
"""Pipelines of this number of the largest nodes are tried alone: prompts hold up the other steps of a long one."""
ROOMS, FILLED = (1, 4, 16), 0.9
"""The requests for which pipelines of alike nodes have memory, and the share of it that whole layers fill."""
MOST_SINGLE = 8
"""The most layouts of a single node to try alone; in larger clusters one node is never the best."""


def deal_layouts(costs: CostModel) -> Iterator[Layout]:
    """Yield layouts with different numbers of pipelines: from the most that the memory allows down to a single one."""
    nodes = [node for node in range(len(costs.nodes)) if can_hold(costs, node)]
    whole = tuple((node,) for node in nodes if costs.count_fitting(node, 0, costs.num_layers) >= 1)
    others = sorted(set(nodes) - {node for (node,) in whole})
    if whole:
        price = costs.price_stage(1, 1)
        fastest = sorted(whole, key=lambda each: price(each[0], 0, costs.num_layers))
        yield from ((each,) for each in fastest[:MOST_SINGLE])
        yield (*whole, *_deal_sites(costs, others, _count_copies(costs, others)))
    if costs.has_gaps:
        yield grow_pipelines(costs, nodes)
        yield (*whole, *grow_pipelines(costs, others))
    most = _count_copies(costs, nodes)
    least = min(-(-len(nodes) // MOST_STAGES), most)
    numbers = {most, most * 3 // 4, most // 2, most // 4, 3, 2, 1}
    for number in sorted(numbers & set(range(least, most + 1)), reverse=True):
        yield _deal_sites(costs, nodes, number)
    largest = sorted(nodes, key=lambda node: (-costs.speeds[node].memory, node))
    for number in FEW:
        if number < len(nodes) and _count_copies(costs, largest[:number]):
            yield (order_nodes(costs, largest[:number]),)


def group_layouts(costs: CostModel) -> Iterator[Layout]:
    """Yield layouts of a large cluster whose pipelines have nodes that are alike: of like speed, or of a site.

    Each has memory for the model and some requests.
    """
    nodes = [node for node in range(len(costs.nodes)) if can_hold(costs, node)]
    whole = tuple((node,) for node in nodes if costs.count_fitting(node, 0, costs.num_layers) >= 1)
    others = sorted(set(nodes) - {node for (node,) in whole})
    by_speed = partial(sorted, key=lambda node: costs.speeds[node].byte_s)
    by_site = partial(sorted, key=lambda node: (costs.nodes[node].site, -costs.speeds[node].memory))
    has_sites = len({costs.nodes[node].site for node in nodes}) > 1
    for sort, requests in product((by_speed, by_site)[: 1 + has_sites], ROOMS):
        yield _group(costs, sort(nodes), requests)
        if whole and others:
            yield (*whole, *_group(costs, sort(others), requests))


def _group(costs: CostModel, nodes: Sequence[int], requests: int) -> Layout:
    """Return pipelines of consecutive nodes with memory for the model and some requests, a share of it for cuts."""
    needed, groups, left = (costs.weights[-1] + requests * costs.kept[-1]) / FILLED, list[list[int]](), 0.0
    for node in nodes:
        if left <= 0:
            groups.append([])
            left = needed
        groups[-1].append(node)
        left -= costs.speeds[node].memory
    return tuple(order_nodes(costs, group) for group in groups[: len(groups) - (left > 0)])


def order_nodes(costs: CostModel, nodes: Iterable[int]) -> tuple[int, ...]:
    """Return nodes in an order in which each is followed by its nearest neighbour, from the one with most memory on.

    Nodes that it does not reach come last.
    """
    left = sorted(nodes, key=lambda node: (-costs.speeds[node].memory, node))
    order = left[:1]
    del left[:1]
    while left:
        near = min(left, key=lambda node: (*_measure_way(costs, order[-1], node), left.index(node)))
        left.remove(near)
        order.append(near)
    return tuple(order)


def _measure_way(costs: CostModel, one: int, other: int) -> tuple[bool, float]:
    return not costs.reaches(one, other), costs.find_link(one, other).round_trip_s


def can_hold(costs: CostModel, node: int) -> bool:
    """Return whether a node has memory for any layer, with those it must stay with, and one request."""
    return any(costs.count_fitting(node, *cut) >= 1 for cut in pairwise(costs.legal))


def _count_copies(costs: CostModel, nodes: Sequence[int]) -> int:
    """Return the most copies of the model that the memory of all nodes together could hold."""
    needed = costs.weights[-1] + costs.kept[-1]
    return int(min(len(nodes), sum(costs.speeds[node].memory for node in nodes) // needed))


def _deal_sites(costs: CostModel, nodes: Sequence[int], number: int) -> Layout:
    """Deal nodes to about ``number`` pipelines, each within a site if the site has memory for one."""
    sites: dict[str, list[int]] = {}
    for node in nodes:
        sites.setdefault(costs.nodes[node].site, []).append(node)
    most = max(1, _count_copies(costs, nodes))
    pipelines: list[tuple[int, ...]] = []
    rest: list[int] = []
    for members in sites.values():
        share = round(number * _count_copies(costs, members) / most)
        if share and len(sites) > 1:
            pipelines += _deal(costs, members, share)
        else:
            rest += members
    if rest and (share := max(number - len(pipelines), 0)):
        pipelines += _deal(costs, rest, share)
    return tuple(pipelines)


def _deal(costs: CostModel, nodes: Sequence[int], number: int) -> Layout:
    """Give each node, largest first, to the pipeline that has the least memory so far.

    This is the longest-processing-time rule (Graham, "Bounds on multiprocessing timing anomalies", 1969).
    """
    hands: list[list[int]] = [[] for _ in range(number)]
    loads = [(0.0, rank) for rank in range(number)]  # a heap, since they ascend
    for node in sorted(nodes, key=lambda node: (-costs.speeds[node].memory, node)):
        load, rank = loads[0]
        hands[rank].append(node)
        heapreplace(loads, (load + costs.speeds[node].memory, rank))
    return tuple(order_nodes(costs, hand) for hand in hands if hand)
