"""Decides which layers to move, by the measured speed of each stage and the memory of its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from parallax_cluster.placement.fitted import fit_layers
from parallax_cluster.placement.layer_cost import LayerCosts
from parallax_core.api import LayerRange, UsageError, format_bytes
from parallax_core.wire.membership import Join

WORTH = 0.9
"""Layers move only if the slowest stage then takes less than this share of its present time."""
WEIGHTS_SHARE = 0.8
"""The largest share of a node's memory for weights: the rest is for KV pages and activations."""


def find_rooms(joins: Sequence[Join], needed: int) -> list[float]:
    """Return the bytes of weights that each stage may hold; stages on one machine share its memory.

    Args:
        joins: the `Join` message of each stage's node.
        needed: the bytes of the whole model's weights.

    Raises:
        UsageError: if the stages together may hold less than ``needed``.
    """
    hosts = Counter(join.host for join in joins)
    least = {host: min(join.memory for join in joins if join.host == host) * WEIGHTS_SHARE for host in hosts}
    if all(least.values()) and (total := sum(least.values())) < needed:
        message = f"the model takes {format_bytes(needed)}, and the nodes have room for {format_bytes(total)} of it"
        raise UsageError(message, "add nodes, free memory on them, or state their memory: `parallax worker --memory`")
    if len(hosts) == 1:
        return [inf] * len(joins)
    return [least[join.host] / hosts[join.host] or inf for join in joins]


def find_rates(layers: Sequence[LayerRange], layer_costs: LayerCosts, seconds: Sequence[float]) -> list[float]:
    """Return the seconds per unit of layer weight, for stages that took ``seconds`` with ``layers``."""
    loads = [sum(layer_costs.weights[each.start : each.stop]) for each in layers]
    return [took / load for took, load in zip(seconds, loads, strict=True)]


def choose_layers(
    layers: Sequence[LayerRange], layer_costs: LayerCosts, seconds: Sequence[float], rooms: Sequence[float] = ()
) -> tuple[LayerRange, ...] | None:
    """Return better layers for stages that took ``seconds`` with ``layers``; None if the gain is too small."""
    rates = find_rates(layers, layer_costs, seconds)
    better = fit_layers(layer_costs.weights, rates, rooms, layer_costs.sizes, illegal=layer_costs.illegal)
    loads = [sum(layer_costs.weights[each.start : each.stop]) for each in better]
    pace = max(load * rate for load, rate in zip(loads, rates, strict=True))
    return better if pace < WORTH * max(seconds) else None
