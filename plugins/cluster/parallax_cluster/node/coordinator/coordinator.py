"""Keeps the pipelines of a cluster as its planner says, while nodes join, leave and are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from parallax_cluster.layer_plan import LayerPlan, Planner, Stages, count_leases, find_intact, list_hops
from parallax_cluster.node.coordinator.drained_machines import DRAINED
from parallax_cluster.node.coordinator.exclusions import Exclusions
from parallax_cluster.node.coordinator.link_checks import LinkChecks
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline, PlannedPipelines, Replicas
from parallax_cluster.node.coordinator.plan_notes import Known, describe_names, list_names, log_plan
from parallax_cluster.node.coordinator.planned import PlanFault, Planning, describe_fault
from parallax_cluster.placement.shortage import NOBODY
from parallax_cluster.rebalancing.rest import MoveRest
from parallax_cluster.rebalancing.watch import SlowdownWatch, describe_changes
from parallax_core.api import ClusterProfile, LayerRange, PlacedStage, Row, holder_of, is_lease, name_machine
from parallax_core.api.deployment import PlannedMove
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.loading import LinkFailed, NodeRefused
from parallax_core.node.pipeline.engine import PipelineEngine

logger = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Seconds to wait for more news after the first: machines that start together join together."""
LOOK_S = 5.0
"""The most seconds between two looks at the nodes."""
MOVING_LOOK_S = 0.2
"""The same while pipelines move."""
CALM_S = 60.0
"""The least seconds between two plans for the same nodes, whose figures have changed."""


@dataclass(frozen=True, slots=True)
class UsableNodes:
    """The nodes that may be used, and why the others may not, by name."""

    cluster: ClusterProfile
    others: Mapping[str, str]
    loaded: Mapping[str, LayerRange] = field(default_factory=dict)
    """The layers of the model that nodes have in memory, by name."""


class Members(Protocol):
    """The nodes that may have layers of the model; a `NodeRegistry`, or some of its nodes."""

    changed: asyncio.Event
    """Set whenever a node has joined, has reported first or is gone; whoever waits for it clears it."""

    @property
    def joined(self) -> tuple[JoinedNode, ...]:
        """The nodes, in the order of joining."""

    def note_leaving(self, name: str) -> None:
        """Note that a node is about to end."""

    def want_leases(self, numbers: Mapping[str, int]) -> None:
        """Set the number of leases to open on each node, by name, now or when it joins."""


Describe = Callable[[Collection[JoinedNode]], UsableNodes]
"""Returns the profile of the nodes that may be used."""
OpenPipeline = Callable[[int, Planning], PlannedPipeline]
"""Makes the pipeline of a rank, not started."""


class Coordinator:
    """Plans the pipelines of one model over the nodes that may have its layers. Belongs to one event loop."""

    drained: Collection[str] = ()
    """The machines whose nodes get no layers, by name; the registry tells of changes."""

    def __init__(self, registry: Members, planner: Planner, describe: Describe, open_pipeline: OpenPipeline) -> None:
        """Give the nodes of ``registry`` the layers that ``planner`` chooses by what ``describe`` says of them."""
        self._registry = registry
        self._planner = planner
        self._describe = describe
        self._excluded = Exclusions()
        self._leaving: dict[str, JoinedNode] = {}
        self._unshared: dict[str, JoinedNode] = {}
        """By name: the nodes that have refused leases of the model, as they had joined then."""
        self._known: Known | None = None
        self._planned_at = 0.0
        self._has_begun = False
        self._others: Mapping[str, str] = {}
        self.unreachable: frozenset[tuple[str, str]] = frozenset()
        """Pairs of nodes of which the first is known not to reach the second."""
        self._planned = asyncio.Event()
        self._watch = SlowdownWatch(planner.model, planner.rules.slowdown)
        self._rest = MoveRest(planner.rules)
        self._kept_for = ""
        """Why pipelines that had all their nodes stayed as they were in the latest plan; empty: they might move."""
        self._former: Mapping[int, Stages] = {}
        """The pipelines of the latest plan that had any."""
        self._loaded: Mapping[str, LayerRange] = {}
        """The layers that nodes have in memory, by name."""
        self._reason = ""
        """Why the latest plan was made."""
        self._links = LinkChecks(registry.changed.set)
        self._pipelines = PlannedPipelines(lambda rank: open_pipeline(rank, self))
        self.plan = LayerPlan(cluster=ClusterProfile(nodes=()), waits_for=NOBODY)
        """The latest plan."""

    @property
    def engines(self) -> list[PipelineEngine]:
        """The engines of all pipelines, by rank."""
        return self._pipelines.engines

    @property
    def can_release(self) -> bool:
        """Whether the requests of a pipeline can move to another one, of which no node leaves."""
        pipelines = self._pipelines.current.values()
        return len(self.engines) > 1 and any(
            (self._leaving.keys() | self._drained).isdisjoint(stage.node for stage in each) for each in pipelines
        )

    @property
    def move(self) -> PlannedMove | None:
        """What is about to move, or is moving; None: nothing."""
        if not (pending := self._pipelines.pending):
            return None
        loads, load_s = self.plan.loads, self.plan.movement.load_s
        return PlannedMove(reason=self._reason, loads=loads, load_s=load_s, ranks=tuple(sorted(pending)))

    @property
    def reason(self) -> str:
        """Why the latest plan was made."""
        return self._reason

    @property
    def slowdowns(self) -> dict[str, float]:
        """How many times longer than predicted the steps of each node take, by name."""
        return self._watch.slowdowns

    @property
    def idle(self) -> dict[str, str]:
        """Why nodes have no layers, by name."""
        return {**self.plan.idle, **self._others}

    @property
    def unusable(self) -> Mapping[str, str]:
        """Why nodes may not be used, by name."""
        return self._others

    @property
    def _nodes(self) -> list[JoinedNode]:
        """The nodes that have joined, without their leases."""
        return [node for node in self._registry.joined if not is_lease(node.name)]

    @property
    def _drained(self) -> set[str]:
        """The nodes on drained machines, by name."""
        return {node.name for node in self._nodes if name_machine(node.name) in self.drained} if self.drained else set()

    @property
    def _by_name(self) -> dict[str, JoinedNode]:
        return {node.name: node for node in self._nodes}

    def explain(self) -> str:
        """Return what the cluster waits for; empty: nothing."""
        if not self.plan.waits_for:
            return ""
        nobody = "no node can be used yet" if self._nodes else NOBODY
        waits_for = self.plan.waits_for.replace(NOBODY, nobody)
        return "; ".join([waits_for, *(f"node {name!r}: {reason}" for name, reason in self._others.items())])

    def note_fault(self, error: PlanFault) -> None:
        """Plan without what has failed: a link until it works, leases of a node, or a node for a while."""
        if isinstance(error, LinkFailed):
            one, other = map(holder_of, error.ends)
            self._links.note_failure(self._by_name, LinkFailed(one, other, error.message))
        elif isinstance(error, NodeRefused) and error.lacks_leases:
            self._stop_sharing(holder_of(error.node), describe_fault(error))
        elif holder_of(error.node) not in self._leaving:  # one that leaves gets nothing anyway
            self._excluded.add(holder_of(error.node), describe_fault(error), _now())
        self._plan_soon()

    def can_serve(self, stages: Stages) -> bool:
        """Return whether the nodes of stages may be used, no other pipeline has them, and no link has failed."""
        barred = self._excluded.find(_now()).keys() | self._leaving.keys() | self._drained
        nodes = {node.name for node in self._nodes} - barred
        unreachable = self._links.find_unreachable(self._nodes, (), ())
        return bool(find_intact([stages], nodes, unreachable)) and self._pipelines.are_free(stages)

    def _stop_sharing(self, node: str, reason: str) -> None:
        logger.warning("node is not shared node=%s: %s", node, reason)
        self._unshared.update({each.name: each for each in self._nodes if each.name == node})

    def _plan_soon(self) -> None:
        """Plan again; what has changed of the nodes counts at once."""
        self._planned_at = -inf
        self._registry.changed.set()

    def rebalance(self) -> None:
        """Plan anew, and have layers move if that is worth it, even if they rest after a move or are held."""
        self._rest.end()
        self._plan_soon()

    def end(self, reason: str) -> None:
        """Serve no more, since another coordinator has taken over: all pipelines fail."""
        self._pipelines.fail(reason)

    async def replace(self, node: str) -> None:
        """Plan without a leaving node, or that of a lease; return once the model is placed elsewhere."""
        node = holder_of(node)
        self._leaving.update({each.name: each for each in self._nodes if each.name == node})
        self._registry.note_leaving(node)
        self._registry.changed.set()
        while node in self._leaving and (node in self._pipelines.users or not self.plan.pipelines):
            self._planned.clear()
            await self._planned.wait()

    def note_step(self, stage: PlacedStage, rows: Sequence[Row], seconds: float) -> None:
        """Note how long a stage computed the rows of a step."""
        if self._watch.note(stage, rows, seconds, _now()):
            self._registry.changed.set()

    async def run(self, replicas: Replicas) -> None:
        """Plan whenever nodes have changed, and have ``replicas`` follow the plan, until cancelled."""
        try:
            while True:
                await self._await_news()
                self._registry.changed.clear()
                if not await self._look():
                    continue
                self._pipelines.advance(replicas, _now())
                if self._known is not None:
                    self._known = (self._known[0], self._pipelines.current)
                self._planned.set()
        finally:
            await asyncio.gather(self._links.close(), self._pipelines.close())

    async def _look(self) -> bool:
        """Plan anew if there is a reason; return False if the plan is not to be used, and another one is needed."""
        changes = self._watch.take_changes(self._pipelines.users, _now())
        usable = self._find_usable()
        known = (self._watch.follow(usable.cluster, _now()), self._pipelines.current)
        self._others = usable.others
        self._links.retry(self._by_name, usable.cluster.unreachable)
        if changes or self._is_news(known):
            return await self._replan(known, changes)
        if not self.plan.pipelines:  # a node that was not to be used may be gone now
            self._stop_broken()
        return True

    def _is_news(self, known: Known) -> bool:
        """Return whether to plan again; figures of the same nodes change all the time, and little."""
        if self._known is None or self._known[1] != known[1]:
            return True
        if self._kept_for and not self._rest.explain(_now()):
            return True
        if not self.plan.pipelines and self._known[0].unreachable != known[0].unreachable:
            return True
        return list_names(self._known) != list_names(known) or (
            known != self._known and _now() > self._planned_at + CALM_S
        )

    async def _replan(self, known: Known, changes: Mapping[str, float]) -> bool:
        before, reason = self._known, [*describe_names(self._known, known), *describe_changes(changes)]
        self._known, self._planned_at = known, _now()
        self._stop_broken()  # meanwhile their nodes can report which others they reach
        try:
            plan = await asyncio.to_thread(self._plan, *known, keeps=(kept_for := self._rest.explain(_now())))
        except Exception:  # the next nodes may be others, whatever the error is
            logger.exception("cluster cannot be planned")
            return True
        if not await self._check_links(plan):
            self._known = before
            self._plan_soon()
            return False
        self._reason = "; ".join(reason) or "reports of nodes have changed"
        self._kept_for = kept_for
        self._rest.note_plan()
        self._apply(plan)
        return True

    def _plan(self, cluster: ClusterProfile, current: Mapping[int, Stages], keeps: str) -> LayerPlan:
        """Plan by what nodes have in memory; pipelines that all wait may go on as they were."""
        nodes = (replace(node, loaded_layers=self._loaded.get(node.name)) for node in cluster.nodes)
        cluster = replace(cluster, nodes=tuple(nodes))
        return self._planner.plan(cluster, current or self._former, has_begun=self._has_begun, keeps=keeps)

    async def _check_links(self, plan: LayerPlan) -> bool:
        """Try the links that a plan needs, before any serving pipeline is given up for it."""
        hops = {hop for stages in plan.pipelines.values() for hop in list_hops(stages)} - self._pipelines.hops
        nodes, users, opening = self._by_name, self._pipelines.users, self._pipelines.opening
        able = nodes.keys() - opening  # others do not hear of it before their layers are loaded
        links = [(nodes[one], nodes[other]) for one, other in hops if {one, other} <= able]
        return await self._links.check(links, [nodes[name] for name in users if name in nodes])

    async def _await_news(self) -> None:
        try:
            async with asyncio.timeout(MOVING_LOOK_S if self._pipelines.pending else LOOK_S):
                await self._registry.changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_S)

    def _find_usable(self) -> UsableNodes:
        """Return the nodes that may be used now."""
        joined = {node.name: node for node in self._nodes}
        self._leaving = {name: node for name, node in self._leaving.items() if joined.get(name) is node}
        others = {name: reason for name, reason in self._excluded.find(_now()).items() if name in joined}
        others.update(dict.fromkeys(self._drained, DRAINED) | dict.fromkeys(self._leaving, "it leaves"))
        usable = self._describe([node for name, node in joined.items() if name not in others])
        self._unshared = {name: node for name, node in self._unshared.items() if joined.get(name) is node}
        profiles = (
            replace(each, leases=False) if each.name in self._unshared else each for each in usable.cluster.nodes
        )
        reported, used = usable.cluster.unreachable, self._pipelines.hops
        self.unreachable = self._links.find_unreachable(self._nodes, reported, used)
        cluster = replace(usable.cluster, nodes=tuple(profiles), unreachable=self.unreachable)
        self._loaded = usable.loaded
        return UsableNodes(cluster, {**usable.others, **others})

    def _apply(self, plan: LayerPlan) -> None:
        self.plan = plan
        if not plan.pipelines:
            logger.warning("no pipeline: %s", self.explain())
            self._stop_broken()
            return
        self._has_begun, self._former = True, plan.pipelines
        if plan.movement.num_moved:
            self._rest.note_move(_now())
        log_plan(plan, self._reason, self.idle)
        self._registry.want_leases(count_leases(plan.pipelines))
        self._pipelines.begin(plan.pipelines, {node.name for node in plan.cluster.nodes}, _now())

    def _stop_broken(self) -> None:
        """Suspend pipelines that have lost a node; the others serve on, also with leaving nodes."""
        self._pipelines.stop_broken({node.name for node in self._nodes} - self._excluded.find(_now()).keys())


def _now() -> float:
    return asyncio.get_running_loop().time()
