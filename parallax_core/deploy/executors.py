"""Where the stages of replicas run: on threads of this process, or in processes of their own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.layer_cost import LayerCosts
from parallax_core.cluster.placement.parallel import StagePlace
from parallax_core.config.serve import ServeSettings
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import Stage
from parallax_core.contracts.transport import TransportPlan, TransportSpec
from parallax_core.models.stages import open_stage
from parallax_core.node.channel import STRANGERS
from parallax_core.node.executor.base import Executor
from parallax_core.node.executor.load_clock import LoadClock
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.executor.rebalance import RebalancingExecutor
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

HEAD = "head"
INPROCESS = "inprocess"
USUAL = WorkerSettings().transport
"""That of workers that are told nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStages:
    """Stages on threads of this process."""

    plugins: PluginHost
    offers: tuple[Offer[BackendSpec], ...]
    """For each stage of a replica."""
    plan: StagePlan
    """What holds for every stage; its layers and device are those of its place."""

    def gather(self, rank: int, places: Sequence[StagePlace], plan: PipelineOptions) -> Executor:
        """Return the company of a replica."""
        del rank
        loading = LoadClock(self.plan.progress)
        pairs = zip(self.offers, places, strict=True)
        openers = [partial(self.open_stage, offer, place, loading) for offer, place in pairs]
        return LocalExecutor(openers, plan, [offer.spec.name for offer in self.offers], loading)

    def open_stage(self, offer: Offer[BackendSpec], place: StagePlace, progress: Progress) -> Stage:
        """Load the layers that go there; to be called on the thread that will run them."""
        plan = dataclasses.replace(self.plan, layers=place.layers, device=place.device, progress=progress)
        return open_stage(self.plugins, offer, plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStages:
    """Stages in processes of their own, started by us or by hand on other machines."""

    model: str
    """As the nodes find it: a folder here, or what the user wrote for those elsewhere."""
    backends: tuple[str, ...]
    """For each stage of a replica; empty: the node's best."""
    plan: StagePlan
    registry: NodeRegistry
    supervisor: WorkerSupervisor | None
    """None: nodes are started by hand."""
    heartbeat_s: float
    weights: WeightsCheck = field(default_factory=WeightsCheck)
    """Shared by all replicas."""
    layer_costs: LayerCosts | None = None
    """Of the layers, where stages are to be measured, and to get as many as they are fast and can hold."""

    def gather(self, rank: int, places: Sequence[StagePlace], plan: PipelineOptions) -> Executor:
        """Return the company of a replica."""
        made = [self._make_role(rank, index, place) for index, place in enumerate(places)]
        roles = [dataclasses.replace(role, load_timeout_s=plan.load_timeout_s) for role in made]
        executor = RemoteExecutor(roles, self.registry, self.supervisor, self.plan.progress, self.weights)
        return RebalancingExecutor(executor, self.layer_costs) if self.layer_costs else executor

    def _make_role(self, rank: int, stage: int, place: StagePlace) -> StageAssignment:
        return StageAssignment(
            stage=stage,
            layers=place.layers,
            model=self.model,
            backend=self.backends[stage],
            dtype=self.plan.dtype,
            device=place.device,
            memory_fraction=self.plan.memory_fraction,
            max_batch_tokens=self.plan.max_batch_tokens,
            max_running=self.plan.max_running,
            heartbeat_s=self.heartbeat_s,
            node=name_worker(rank, stage) if self.supervisor else "",
        )


def name_worker(rank: int, stage: int) -> str:
    """Return the name of the node that is stage ``stage`` of replica ``rank``."""
    return f"worker/{rank}/{stage}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLauncher:
    """How worker processes of this machine are started."""

    transport: str
    registry: NodeRegistry
    """Of the head."""
    place: Callable[[str], str]
    """Where the node of a name listens."""
    backends: tuple[str, ...]
    """For each stage of a replica; empty: the node's best."""
    pythons: dict[str, str] = field(default_factory=dict)
    peer_timeout: float
    verbose: bool = False

    def make_command(self, node: str) -> list[str]:
        """Return the command line of the process of a node."""
        backend = self.backends[int(node.rpartition("/")[2])]
        command = [
            self.pythons.get(backend, sys.executable),
            *("-P", "-m", "parallax_core", "worker", "--supervised"),  # -P: what lies about here is no part of it
            *("--transport", self.transport, "--connect", self.registry.address, "--head", HEAD),
            *("--node", node, "--listen", self.place(node), "--peer-timeout", f"{self.peer_timeout:g}"),
        ]
        return command + (["--backend", backend] if backend else []) + (["--verbose"] if self.verbose else [])


def make_registry(settings: ServeSettings, offer: Offer[TransportSpec], folder: Path) -> NodeRegistry:
    """Return the node registry of the head, which listens where the user says, or in ``folder``.

    Raises:
        UsageError: if the transport has no place on this machine by itself.
    """
    listen = settings.listen or make_place(offer, folder)(HEAD)
    plan = TransportPlan(node=HEAD, listen=listen, timeout_s=settings.peer_timeout, strangers=STRANGERS)
    command = "parallax worker" if (name := offer.spec.name) == USUAL else f"parallax worker --transport {name}"
    return NodeRegistry(offer.load(offer.spec.factory)(plan), HEAD, command)


def make_place(offer: Offer[TransportSpec], folder: Path) -> Callable[[str], str]:
    """Return what says where the node of a name listens for others of this machine.

    Raises:
        UsageError: if the transport has no such place.
    """
    if offer.spec.place_local is None:
        message = f"the transport {offer.spec.name!r} does not say where nodes of one machine listen"
        raise UsageError(message, "start the workers by hand: `parallax serve --listen ADDRESS`, `parallax worker`")
    return partial(offer.load(offer.spec.place_local), folder)
