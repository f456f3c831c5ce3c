"""Looks for pipelines that share nodes, where these answer more than pipelines that do not."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import chain
from math import factorial

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.leased import LeasedPipeline
from parallax_cluster.placement.linked import grow_pipelines
from parallax_cluster.placement.seeds import order_nodes
from parallax_cluster.placement.shared import Rates, SharedPlan, plan_shared
from parallax_core.api import Estimate, Estimator, LayerRange, Placement, StageLease

EFFORT, LEAST_EFFORT = 1200, 10
"""The changes of orders that are tried, divided by the number of nodes, and the least; not more than twice the orders
that there are."""
NUMBERS = (2, 4)
"""The numbers of pipelines that the requests are taken to be divided among, for the time of a step."""
LEAST_RATE = 0.02
"""The share of all requests below which a pipeline is left out."""
MOST_NODES = 40
"""The most nodes for which sharing is tried, since it takes time."""
MOST_LEASES = 16
"""The most pipelines of a node."""


def plan_leases(costs: CostModel, estimator: Estimator) -> list[tuple[Placement, Estimate]]:
    """Return valid placements in which pipelines share nodes that have leases; none if there is nothing to share."""
    able = [index for index, node in enumerate(costs.nodes) if node.leases]
    if not 3 <= len(able) <= MOST_NODES or costs.goal.objective != "throughput" or costs.goal.concurrency < 2:  # noqa: PLR2004
        return []
    effort = min(2 * factorial(len(able)), max(LEAST_EFFORT, EFFORT // len(able)))
    orders = [order_nodes(costs, able)]
    if costs.has_gaps:
        orders.append(tuple(dict.fromkeys([*chain(*grow_pipelines(costs, able)), *able])))
    plans = (plan_shared(_find_rates(costs, number), orders, effort) for number in NUMBERS)
    found = []
    for placement in dict.fromkeys(_place(costs, plan) for plan in plans):
        if placement is not None:
            with suppress(ValueError):  # a share of a node's memory is too small for one request
                found.append((placement, estimator.estimate(placement)))
    return found


def _find_rates(costs: CostModel, number: int) -> Rates:
    """Return how many requests pass through nodes and links in a second, if they are divided among pipelines."""
    price = costs.price_stage(1, max(1, costs.goal.concurrency // number))
    carried = costs.problem.model.hidden * (costs.goal.prompt_tokens + costs.num_decodes)

    @cache
    def pass_node(node: int, start: int, stop: int) -> float:
        return 1 / price(node, start, stop) if costs.count_fitting(node, start, stop) >= number else 0.0

    def pass_link(one: int, other: int) -> float:
        return costs.find_link(one, other).bandwidth / carried if costs.reaches(one, other) else 0.0

    return Rates(num_layers=costs.num_layers, legal=costs.legal, node=pass_node, link=pass_link)


def _place(costs: CostModel, plan: SharedPlan) -> Placement | None:
    """Return the pipelines of a plan, with a lease for each stage whose node is in several; None if no node is."""
    paths = [(nodes, rate) for nodes, rate in plan.paths if rate >= LEAST_RATE * plan.rate]
    totals: dict[int, float] = {}
    counts: dict[int, int] = {}
    for nodes, rate in paths:
        for node in nodes:
            totals[node] = totals.get(node, 0.0) + rate
            counts[node] = counts.get(node, 0) + 1
    if not counts or not 1 < max(counts.values()) <= MOST_LEASES:
        return None
    numbers = dict.fromkeys(counts, 0)
    pipelines = []
    for nodes, rate in sorted(paths, key=lambda path: -path[1]):
        leases = list[StageLease | None]()
        for node in nodes:
            lease = StageLease(numbers[node], LayerRange(*plan.held[node]), rate / totals[node])
            leases.append(lease if counts[node] > 1 else None)
            numbers[node] += 1
        cuts = (0, *(plan.held[node][1] for node in nodes))
        pipelines.append(LeasedPipeline(costs, nodes, cuts, tuple(leases)).place())
    return Placement(tuple(pipelines))
