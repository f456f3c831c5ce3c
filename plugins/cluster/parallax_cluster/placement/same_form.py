"""Gives the layers of a lost node to another one that loads the same form of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise, product

from parallax_core.api import Estimator, LayerRange, PlacedStage, Placement, PlacementProblem

MOST_TRIALS = 256
"""The most ways to repair a pipeline that are tried."""


def take_over(
    problem: PlacementProblem,
    estimator: Estimator,
    current: Iterable[Sequence[PlacedStage]],
    find: Callable[[str], str],
) -> Placement | None:
    """Return the current pipelines with other nodes in the places of lost ones; None: nothing is lost, or none can.

    An idle node takes a whole place, or the node before or after it takes its layers, too.

    Args:
        problem: with the nodes that are left.
        estimator: of the problem.
        current: the pipelines, with nodes that are gone.
        find: returns the form of the weights that a node loads, or did.
    """
    pipelines = [tuple(stages) for stages in current]
    here = {node.name for node in problem.cluster.nodes}
    if all(stage.node in here for stages in pipelines for stage in stages):
        return None
    if any(stage.lease is not None for stages in pipelines for stage in stages):
        return None
    whole = [stages for stages in pipelines if all(stage.node in here for stage in stages)]
    for stages in (stages for stages in pipelines if stages not in whole):
        used = {stage.node for pipeline in (*whole, stages) for stage in pipeline}
        idle = sorted(here - used, key=lambda name: -_find_memory(problem, name))
        repairs = islice(_repair(stages, here, idle, find), MOST_TRIALS)
        unreachable = problem.cluster.unreachable
        fitting = (each for each in repairs if _holds(estimator, (*whole, each), unreachable))
        if (repaired := next(fitting, None)) is None:
            return None
        whole.append(repaired)
    return Placement(tuple(whole))


def _repair(
    stages: Sequence[PlacedStage], here: Collection[str], idle: Sequence[str], find: Callable[[str], str]
) -> Iterator[tuple[PlacedStage, ...]]:
    """Yield the pipeline with each choice of nodes that are here."""
    choices: list[list[str]] = []
    for place, stage in enumerate(stages):
        if stage.node in here:
            choices.append([stage.node])
            continue
        beside = [each.node for each in (*stages[max(0, place - 1) : place], *stages[place + 1 : place + 2])]
        able = [*idle, *(name for name in beside if name in here)]
        choices.append([name for name in able if find(name) == find(stage.node)])
    for names in product(*choices):
        joined: list[PlacedStage] = []
        for name, stage in zip(names, stages, strict=True):
            layers = stage.layers
            if joined and joined[-1].node == name:
                layers = LayerRange(joined.pop().layers.start, layers.stop)
            joined.append(PlacedStage(name, layers))
        if len({stage.node for stage in joined}) == len(joined):
            yield tuple(joined)


def _holds(
    estimator: Estimator, pipelines: Sequence[tuple[PlacedStage, ...]], unreachable: Collection[tuple[str, str]]
) -> bool:
    if any((one.node, other.node) in unreachable for stages in pipelines for one, other in pairwise(stages)):
        return False
    try:
        estimator.estimate(Placement(tuple(pipelines)))
    except ValueError:  # a node has too little memory
        return False
    return True


def _find_memory(problem: PlacementProblem, name: str) -> int:
    return next(node.device.memory for node in problem.cluster.nodes if node.name == name)
