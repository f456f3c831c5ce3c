"""Says which memory is missing where a model does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from parallax_cluster.placement.cost_model import CostModel
from parallax_core.api import LayerRange, PlacementProblem, format_bytes

NOBODY = "no node has joined"
MOST_ORDERED = 5
"""The most nodes that are tried in every order."""
MOST_TRIED = 64
"""The most nodes that are tried at all: the largest."""


def describe_shortage(problem: PlacementProblem) -> str:
    """Return the memory a model needs, the memory of the nodes, and the layers without a place, in words."""
    costs, nodes, shared = CostModel(problem), problem.cluster.nodes, problem.model.shared
    whole = costs.measure_weights(0, costs.num_layers)
    needed = f"the model needs {format_bytes(whole)} for its weights and {format_bytes(costs.kept[-1])} for a request"
    if not nodes:
        return f"{needed}, and {NOBODY}"
    total, largest = (format_bytes(find(node.device.memory for node in nodes)) for find in (sum, max))
    if len(nodes) == 1:
        return f"{needed}, and there is one node, with {total}; {_describe_rest(costs)}"
    if shared:
        needed += f" ({format_bytes(whole + shared)} in several stages: the first and the last have the embeddings)"
    having = f"there are {len(nodes)} nodes, with {total} together and {largest} at most"
    return f"{needed}, and {having}; {_describe_rest(costs)}"


def _describe_rest(costs: CostModel) -> str:
    rest = find_rest(costs)
    if len(rest) == costs.num_layers:
        ends = LayerRange(0, 1), LayerRange(costs.num_layers - 1, costs.num_layers)
        needed = format_bytes(min(measure_need(costs, end) for end in ends))
        return f"none has room for the first layer or the last, and a request there: {needed}"
    if not len(rest):
        return "that would do if they could be used together"
    missing = f"layers {rest.start}-{rest.stop} do not fit, and need {format_bytes(measure_need(costs, rest))} more"
    whole = ", ".join(str(cut) for cut in range(rest.start + 1, rest.stop) if cut not in costs.legal)
    return f"{missing}; no stage may begin with {whole}: `parallax models show` says why" if whole else missing


def measure_need(costs: CostModel, layers: LayerRange) -> float:
    """Return the bytes that a node needs for layers, with the KV cache of a request."""
    return costs.measure_weights(layers.start, layers.stop) + costs.kept[layers.stop] - costs.kept[layers.start]


def find_rest(costs: CostModel) -> LayerRange:
    """Return the layers that take least memory of those that a split of the others leaves over; empty: all fit.

    Every order is tried of a few nodes, and of more some in which the largest are at one end, or at both.
    """
    rests = (_fill(costs, order[:cut], order[cut:]) for order in _list_orders(costs) for cut in range(len(order) + 1))
    return min(rests, key=lambda rest: measure_need(costs, rest) if len(rest) else 0.0)


def _list_orders(costs: CostModel) -> Iterable[Sequence[int]]:
    nodes = sorted(range(len(costs.nodes)), key=lambda node: -costs.speeds[node].memory)[:MOST_TRIED]
    if len(nodes) <= MOST_ORDERED:
        return permutations(nodes)
    return nodes, nodes[::-1], [*nodes[::2], *nodes[1::2][::-1]]


def _fill(costs: CostModel, before: Sequence[int], after: Sequence[int]) -> LayerRange:
    """Return what is left when nodes get the most layers that fit: some from the first on, others from the last on."""
    start, stop = 0, costs.num_layers
    for is_first, node in [*((True, node) for node in before), *((False, node) for node in reversed(after))]:
        if costs.count_fitting(node, start, stop) >= 1:
            return LayerRange(stop, stop)
        cuts = range(start, stop + 1)
        if is_first:
            start = max(cut for cut in cuts[:-1] if cut == start or costs.count_fitting(node, start, cut) >= 1)
        else:
            stop = min(cut for cut in cuts[1:] if cut == stop or costs.count_fitting(node, cut, stop) >= 1)
    return LayerRange(start, stop)
