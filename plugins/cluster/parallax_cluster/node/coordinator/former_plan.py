"""Restores the last plan after a coordinator restart, for nodes that still hold their layers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial

from parallax_cluster.layer_plan import LayerPlan, LayerPlanner, Stages
from parallax_cluster.node.coordinator.coordinator import UsableNodes
from parallax_cluster.node.coordinator.own_node import OWN_NODE
from parallax_cluster.node.coordinator.plan_store import FormerPlan, PlanStore
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_core.api import ClusterProfile, ParallaxError
from parallax_core.api.node import FaultLog
from parallax_core.node.membership.joined_node import JoinedNode

REUNION_S = 15.0
"""Seconds for which nodes of the last plan are waited for; they try to join again at least every two seconds."""
OWN_S = 60.0
"""The same for the node of the server's machine, which has to start first, and surely comes."""

logger = logging.getLogger(__name__)


class FormerNodes:
    """Describes nodes as `NodeProfiles` does, once those of the last plan are here, or are not expected any more."""

    def __init__(
        self, profiles: NodeProfiles, plan: FormerPlan, own: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Wait for the nodes of ``plan``, from now on; ``own`` is the one that this process starts itself, if any."""
        self._profiles = profiles
        self._awaited = {stage.node for stages in plan.pipelines.values() for stage in stages}
        if not own:
            self._awaited.discard(OWN_NODE)
        self._own = own
        self._clock = clock
        self._begun = clock()

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profile of the nodes that may be used, and why the others may not."""
        usable = self._profiles.describe(nodes)
        here = {node.name for node in usable.cluster.nodes}
        self._awaited = {name for name in self._awaited if self._is_expected(name)}
        if self._awaited <= here:
            self._awaited = set()
            return usable
        missing = ", ".join(sorted(self._awaited - here))
        waiting = dict.fromkeys(here, f"it waits for {missing}, as before the restart of the server")
        return UsableNodes(ClusterProfile(nodes=()), {**waiting, **usable.others})

    def _is_expected(self, node: str) -> bool:
        return self._clock() < self._begun + (OWN_S if node == self._own else REUNION_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastingPlanner(LayerPlanner):
    """A planner that keeps its plans, and begins with the last one."""

    store: PlanStore
    name: str
    """Of the model."""
    former: FormerPlan
    find_memories: Callable[[], Mapping[str, int]]
    """Returns the memory of each node before it loaded layers."""
    faults: FaultLog = field(default_factory=partial(FaultLog, logger, "the last plan"), compare=False)

    def plan(
        self, cluster: ClusterProfile, current: Mapping[int, Stages], *, has_begun: bool = False, keeps: str = ""
    ) -> LayerPlan:
        """Return the pipelines; see `LayerPlanner.plan`. Before the first, those before the restart are the current."""
        known = current if current or has_begun else self.former.pipelines
        plan = LayerPlanner.plan(self, cluster, known, has_begun=has_begun, keeps=keeps)
        if plan.pipelines:
            try:
                self.store.save(self.name, FormerPlan(plan.pipelines, self.find_memories()))
                self.faults.clear()
            except ParallaxError as error:  # it serves all the same
                self.faults.note(f"{error.message}; after a restart of the server nodes may have to load other layers")
        return plan


def make_lasting(planner: LayerPlanner, store: PlanStore, name: str, profiles: NodeProfiles) -> LastingPlanner:
    """Return a planner that keeps the plans of the model ``name`` in ``store``, and recalls what its nodes had free."""
    try:
        former = store.find(name)
    except ParallaxError as error:
        logger.warning("%s", error.message)
        former = FormerPlan()
    profiles.recall(former.memories)
    given = {each.name: getattr(planner, each.name) for each in fields(LayerPlanner)}
    return LastingPlanner(**given, store=store, name=name, former=former, find_memories=lambda: profiles.memories)
