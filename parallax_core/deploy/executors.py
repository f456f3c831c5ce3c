"""Makes the executor of each replica: its stages run on threads here, or in worker processes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.base.ids import HEAD
from parallax_core.cluster.failure_detector import MIN_TIMEOUT_S
from parallax_core.cluster.placement.parallel import StagePlace
from parallax_core.config.serve import ServeSettings
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import LayerRange, Stage
from parallax_core.contracts.transport import TransportPlan, TransportSpec
from parallax_core.deploy.additions import NodeAdmission
from parallax_core.deploy.backend_options import FLAG, BackendOptions
from parallax_core.deploy.node_services import make_services
from parallax_core.models.stages import open_stage
from parallax_core.node.channel import STRANGERS
from parallax_core.node.executor.base import Executor
from parallax_core.node.executor.load_clock import LoadClock
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

INPROCESS = "inprocess"
"""The transport between stages in one process."""
USUAL = WorkerSettings().transport
"""The default transport of workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStages:
    """Stages on threads of this process."""

    plugins: PluginHost
    offers: tuple[Offer[BackendSpec], ...]
    """The backend of each stage of a replica."""
    plan: StagePlan
    """The plan of every stage, apart from its layers and device."""

    def make_executor(self, rank: int, places: Sequence[StagePlace], options: PipelineOptions) -> Executor:
        """Return the executor of a replica."""
        del rank
        loading = LoadClock(self.plan.progress)
        pairs = zip(self.offers, places, strict=True)
        openers = [partial(self.open_stage, offer, place, loading) for offer, place in pairs]
        return LocalExecutor(openers, options, [offer.spec.name for offer in self.offers], loading)

    def open_stage(self, offer: Offer[BackendSpec], place: StagePlace, progress: Progress) -> Stage:
        """Load the layers of a stage; call it on the thread that will run them."""
        plan = dataclasses.replace(self.plan, layers=place.layers, device=place.device, progress=progress)
        return open_stage(self.plugins, offer, plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStages:
    """Stages in worker processes, which this process starts, or an operator on other machines."""

    model: str
    """The name by which nodes find the model: its folder on this machine, or as the user wrote it for others."""
    backends: tuple[str, ...]
    """The backend of each stage of a replica; empty: the best one of its node."""
    plan: StagePlan
    """The plan of every stage, apart from its layers and device."""
    registry: NodeRegistry
    supervisor: WorkerSupervisor | None
    """None: an operator starts the nodes."""
    heartbeat_s: float
    """Seconds between the heartbeats of a stage."""
    min_peer_timeout: float = MIN_TIMEOUT_S
    """Seconds of silence that never count as the loss of a stage."""
    weights: WeightsCheck = field(default_factory=WeightsCheck)
    """Shared by all replicas."""
    balance: Callable[[RemoteExecutor], Executor] | None = None
    """Returns an executor that moves layers between its stages; None: each keeps those with which it begins."""
    spares: SparePool | None = None
    """The spare nodes of all replicas; None without spares."""

    def make_executor(self, rank: int, places: Sequence[StagePlace], options: PipelineOptions) -> Executor:
        """Return the executor of a replica."""
        assignments = [self.assign(stage, place.layers, options, place.device) for stage, place in enumerate(places)]
        if self.supervisor is not None:
            assignments = [dataclasses.replace(each, node=name_worker(rank, each.stage)) for each in assignments]
        supply = NodeSupply(self.registry, self.supervisor, self.spares)
        executor = RemoteExecutor(assignments, supply, self.plan.progress, self.weights)
        return self.balance(executor) if self.balance is not None else executor

    def assign(
        self, stage: int, layers: LayerRange | None, options: PipelineOptions, device: str = ""
    ) -> StageAssignment:
        """Return the assignment of a stage, for any node."""
        return StageAssignment(
            stage=stage,
            layers=layers,
            model=self.model,
            backend=self.backends[stage],
            dtype=self.plan.dtype,
            device=device,
            memory_fraction=self.plan.memory_fraction,
            max_batch_tokens=self.plan.max_batch_tokens,
            max_running=self.plan.max_running,
            heartbeat_s=self.heartbeat_s,
            min_timeout_s=self.min_peer_timeout,
            load_timeout_s=options.load_timeout_s,
        )


def name_worker(rank: int, stage: int) -> str:
    """Return the name of the node that runs stage ``stage`` of replica ``rank``."""
    return f"worker/{rank}/{stage}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLauncher:
    """Makes the command lines of worker processes on this machine."""

    transport: str
    registry: NodeRegistry
    """The head's registry, which the workers join."""
    place: Callable[[str], str]
    """Returns the address where the node of a name listens."""
    backends: tuple[str, ...]
    """The backend of each stage of a replica; empty: the best one of its node."""
    pythons: dict[str, str] = field(default_factory=dict)
    """By backend: its Python interpreter, if it is not this one."""
    options: BackendOptions = field(default_factory=dict)
    """The options given on the command line, for the workers of each backend."""
    peer_timeout: float
    """Seconds of silence after which a peer counts as lost."""
    config_file: Path | None = None
    """The configuration file that this process uses; workers of its own interpreter get the options of backends from
    it. Those of another have other plugins, whose sections they look for themselves."""
    forwarded: frozenset[str] = frozenset()
    """Backends with another interpreter whose options are all in ``options``; their workers read `empty_config`."""
    empty_config: Path | None = None
    """A configuration file without sections: those of this process may belong to plugins that a worker has not."""
    verbose: bool = False
    memory: float | None = None
    """Gigabytes that a worker may use; None: the free memory."""
    labels: tuple[str, ...] = ()
    """The labels of this machine, as ``KEY=VALUE``."""
    max_context: int | None = None
    """The most tokens of a request on this machine; None: as many as the model takes."""
    as_joined: bool = False
    """Whether a worker measures its device, and joins again when its link breaks, as those of other machines do."""

    def make_command(self, node: str) -> list[str]:
        """Return the command line of a node's process."""
        backend = self.backends[int(node.rpartition("/")[2])]
        command = [
            self.pythons.get(backend, sys.executable),
            *("-P", "-m", "parallax_core", "worker", "--supervised"),  # -P: no imports from this folder
            *("--transport", self.transport, "--connect", self.registry.address, "--head", HEAD),
            *("--node", node, "--listen", self.place(node), "--peer-timeout", f"{self.peer_timeout:g}"),
        ]
        file = self.empty_config if backend in self.forwarded else self.config_file
        if file and (backend not in self.pythons or backend in self.forwarded):
            command += ["--config", str(file)]
        for name, value in self.options.get(backend, {}).items():
            command += [FLAG, f"{name}={value}"]
        if self.as_joined:
            command += ["--as-joined"]
        command += [part for label in self.labels for part in ("--label", label)]
        if self.memory is not None:
            command += ["--memory", f"{self.memory:g}"]
        if self.max_context is not None:
            command += ["--max-context", str(self.max_context)]
        return command + (["--backend", backend] if backend else []) + (["--verbose"] if self.verbose else [])


def make_registry(
    settings: ServeSettings,
    offer: Offer[TransportSpec],
    folder: Path,
    plugins: PluginHost,
    admission: NodeAdmission | None = None,
) -> NodeRegistry:
    """Return the head's node registry, which listens at ``--listen``, or else at an address in ``folder``.

    Machines join by keys that were exchanged, and as ``admission`` says. It has the services that plugins offer.

    Raises:
        UsageError: if the transport has no addresses for nodes of one machine.
    """
    listen = settings.listen or make_place(offer, folder)(HEAD)
    timeout_s = settings.peer_timeout or offer.spec.timeout_s
    plan = TransportPlan(node=HEAD, listen=listen, timeout_s=timeout_s, strangers=STRANGERS)
    command = "parallax worker" if (name := offer.spec.name) == USUAL else f"parallax worker --transport {name}"
    transport = offer.load(offer.spec.factory)(plan)
    registry = NodeRegistry(transport, HEAD, command, measures_links=settings.listen is not None)
    for service in make_services(plugins, "head", registry):
        registry.services.add(service)
    if admission is not None:
        admission.equip(registry, transport, offer, settings)
    return registry


def make_place(offer: Offer[TransportSpec], folder: Path) -> Callable[[str], str]:
    """Return a function from a node's name to the address where it listens for other nodes of this machine.

    Raises:
        UsageError: if the transport has no such addresses.
    """
    if offer.spec.place_local is None:
        message = f"the transport {offer.spec.name!r} has no addresses for nodes of one machine"
        raise UsageError(message, "start the workers by hand: `parallax serve --listen ADDRESS`, `parallax worker`")
    return partial(offer.load(offer.spec.place_local), folder)
