"""Says in words and logs what a plan changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice

from parallax_cluster.layer_plan import LayerPlan, Stages
from parallax_cluster.node.coordinator.planned import describe_places
from parallax_core.api import ClusterProfile, format_bytes

logger = logging.getLogger(__name__)

Known = tuple[ClusterProfile, dict[int, Stages]]
"""What a plan is made from: the nodes, and the stages of each pipeline so far."""

MOST_NAMED = 8
"""The most nodes that are named for one reason. A cluster may have hundreds, and is planned anew whenever one joins."""


def log_plan(plan: LayerPlan, reason: str, idle: Mapping[str, str]) -> None:
    """Log what a plan moves and why, the pipelines, and why nodes are ``idle``."""
    if plan.movement.load_bytes or plan.movement.num_moved:
        logger.info(
            "layers move bytes=%s %spipelines=%d: %s",
            format_bytes(plan.movement.load_bytes),
            "".join(f"{node}={format_bytes(size)} " for node, size in plan.loads.items()),
            len(plan.pipelines),
            reason,
        )
    for rank, stages in plan.pipelines.items():
        logger.info("pipeline %d has %s", rank, describe_places(stages))
    logger.info("predicted tokens_per_s=%.4g", plan.estimate.tokens_per_s)
    for node, cause in islice(idle.items(), MOST_NAMED):
        logger.info("node is idle node=%s: %s", node, cause)
    if len(idle) > MOST_NAMED:
        logger.info("further nodes are idle number=%d; `parallax nodes` says why", len(idle) - MOST_NAMED)


def describe_names(before: Known | None, after: Known) -> list[str]:
    """Return, in words, the nodes that have become usable or unusable."""
    old, new = list_names(before) if before is not None else set(), list_names(after)
    found = [(new - old, "can be used"), (old - new, "can no longer be used")]
    return [line for names, news in found for line in _describe_nodes(sorted(names), news)]


def _describe_nodes(names: Sequence[str], news: str) -> list[str]:
    named = [f"node {name!r} {news}" for name in names[:MOST_NAMED]]
    return named if len(names) <= MOST_NAMED else [*named, f"{len(names) - MOST_NAMED} further nodes {news}"]


def list_names(known: Known) -> set[str]:
    """Return the names of the nodes that may be used."""
    return {node.name for node in known[0].nodes}
