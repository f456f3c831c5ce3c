"""From the options of ``parallax serve`` to replicas and their stages."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.base.files import read_object
from parallax_core.cli.interpreter import read_pythons
from parallax_core.config.parallel import ParallelConfig, StagePlace, parse_layers
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.stage import Stage
from parallax_core.contracts.transport import TransportPlan, TransportSpec
from parallax_core.node.choice import choose_backend, find_backends
from parallax_core.node.company import Company
from parallax_core.node.crew import Crew
from parallax_core.node.family import find_family
from parallax_core.node.muster import Muster
from parallax_core.node.nursery import Nursery
from parallax_core.node.plan import PipelinePlan
from parallax_core.node.troop import Role, Troop
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

HEAD = "head"
INPROCESS = "inprocess"
COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How config.json may call the number of layers."""


def read_parallel(settings: ServeSettings) -> ParallelConfig:
    """Return how a user wants the model to be split.

    Raises:
        UsageError: if the options contradict each other.
    """
    layers = parse_layers(settings.layers) if settings.layers else ()
    if layers and settings.stages not in {1, len(layers)}:
        message = f"--layers names {len(layers)} stages, and --stages {settings.stages}"
        raise UsageError(message, "leave one of them out")
    return ParallelConfig(
        data_parallel=settings.data_parallel,
        num_stages=len(layers) or settings.stages,
        layers=layers,
        devices=settings.device,
    )


def choose_transport_name(settings: ServeSettings, parallel: ParallelConfig) -> str:
    """Return the transport to use: that of the user, or else processes of their own where there are several stages.

    Raises:
        UsageError: if what is asked for needs other processes, and the transport joins none.
    """
    needs = [name for name in ("listen", "python") if getattr(settings, name)]
    if settings.transport == INPROCESS and needs:
        message = f"--{needs[0]} needs a transport between processes, and {INPROCESS} is none"
        raise UsageError(message, "leave --transport out, or say --transport zmq")
    several = parallel.num_stages * parallel.data_parallel > 1
    return settings.transport or ("zmq" if several or needs else INPROCESS)


def split_backends(text: str | None, num_stages: int) -> tuple[str, ...]:
    """Return the backend of each stage; empty: the best there is.

    Raises:
        UsageError: if ``text`` names neither one nor as many as there are stages.
    """
    names = tuple(part.strip() for part in text.split(",")) if text else ("",)
    if len(names) not in {1, num_stages} or (text and not all(names)):
        message = f"{text!r} names {len(names)} backends, and there are {num_stages} stages"
        raise UsageError(message, "name one for all stages, or one for each")
    return names * num_stages if len(names) == 1 else names


def place_layers(parallel: ParallelConfig, plugins: PluginHost, config: dict[str, Any]) -> ParallelConfig:
    """Return ``parallel`` with the layers of each stage, for the model that ``config``, its config.json, describes.

    Shares are even in the weights that a token meets, as far as an adapter knows them; the last also has the head.

    Raises:
        UsageError: if there are fewer layers than stages, or the given ones are not the model's.
    """
    if parallel.num_stages == 1 and not parallel.layers:
        return parallel
    family = find_family(plugins, config)
    if family is not None:
        shape = family.adapter.read_shape(config)
        weights = [layer.active_weights for layer in shape.layers]
        weights[-1] += shape.before_weights if shape.is_tied else shape.after_weights
        return parallel.with_layers(len(weights), weights)
    text = config.get("text_config") or config
    count = next((int(text[name]) for name in COUNTS if isinstance(text.get(name), int)), None)
    if count is None:
        raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
    return parallel.with_layers(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """Stages on threads of this process."""

    offers: tuple[Offer[BackendSpec], ...]
    """For each stage of a replica."""
    plan: StagePlan
    """What holds for every stage; its layers and device are those of its place."""

    def gather(self, rank: int, places: Sequence[StagePlace], plan: PipelinePlan) -> Company:
        """Return the company of a replica."""
        del rank
        openers = [partial(self.open_stage, offer, place) for offer, place in zip(self.offers, places, strict=True)]
        return Crew(openers, plan, [offer.spec.name for offer in self.offers])

    def open_stage(self, offer: Offer[BackendSpec], place: StagePlace) -> Stage:
        """Load the layers that go there; to be called on the thread that will run them."""
        plan = dataclasses.replace(self.plan, layers=place.layers, device=place.device)
        return offer.load(offer.spec.factory)().open_stage(plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """Stages in processes of their own, started by us or by hand on other machines."""

    model: str
    """As the nodes find it: a folder here, or what the user wrote for those elsewhere."""
    backends: tuple[str, ...]
    """For each stage of a replica; empty: the node's best."""
    plan: StagePlan
    muster: Muster
    nursery: Nursery | None
    """None: nodes are started by hand."""
    heartbeat_s: float

    def gather(self, rank: int, places: Sequence[StagePlace], plan: PipelinePlan) -> Company:
        """Return the company of a replica."""
        del plan
        roles = [self._make_role(rank, index, place) for index, place in enumerate(places)]
        return Troop(roles, self.muster, self.nursery, self.plan.progress)

    def _make_role(self, rank: int, stage: int, place: StagePlace) -> Role:
        return Role(
            stage=stage,
            layers=place.layers,
            model=self.model,
            backend=self.backends[stage],
            dtype=self.plan.dtype,
            device=place.device,
            memory_fraction=self.plan.memory_fraction,
            heartbeat_s=self.heartbeat_s,
            node=name_worker(rank, stage) if self.nursery else "",
        )


def name_worker(rank: int, stage: int) -> str:
    """Return the name of the node that is stage ``stage`` of replica ``rank``."""
    return f"worker/{rank}/{stage}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How worker processes of this machine are started."""

    transport: str
    muster: Muster
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
            *("--transport", self.transport, "--connect", self.muster.address, "--head", HEAD),
            *("--node", node, "--listen", self.place(node), "--peer-timeout", f"{self.peer_timeout:g}"),
        ]
        return command + (["--backend", backend] if backend else []) + (["--verbose"] if self.verbose else [])


def make_muster(settings: ServeSettings, offer: Offer[TransportSpec], folder: Path) -> Muster:
    """Return the muster of the head, which listens where the user says, or in ``folder``.

    Raises:
        UsageError: if the transport has no place on this machine by itself.
    """
    listen = settings.listen or make_place(offer, folder)(HEAD)
    plan = TransportPlan(node=HEAD, listen=listen, timeout_s=settings.peer_timeout)
    return Muster(offer.load(offer.spec.factory)(plan), HEAD)


def make_place(offer: Offer[TransportSpec], folder: Path) -> Callable[[str], str]:
    """Return what says where the node of a name listens for others of this machine.

    Raises:
        UsageError: if the transport has no such place.
    """
    if offer.spec.place_local is None:
        message = f"the transport {offer.spec.name!r} does not say where nodes of one machine listen"
        raise UsageError(message, "start the workers by hand: `parallax serve --listen ADDRESS`, `parallax worker`")
    return partial(offer.load(offer.spec.place_local), folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the options of ``parallax serve`` say of stages, checked as far as can be before the model is there."""

    settings: ServeSettings
    plugins: PluginHost
    parallel: ParallelConfig
    transport: Offer[TransportSpec]
    backends: tuple[str, ...]
    """For each stage of a replica; empty: the best there is."""
    offers: dict[str, list[Offer[BackendSpec]]]
    """By name, those that run in this environment, the best first."""
    pythons: dict[str, str]

    def place_layers(self, config: dict[str, Any]) -> ParallelConfig:
        """Return which layers go where; see the function of that name."""
        return place_layers(self.parallel, self.plugins, config)

    def make_stages(self, plan: StagePlan, private: Path) -> Local | Remote:
        """Return what opens stages as ``plan`` says, here or elsewhere; ``private`` is a folder for sockets."""
        config = read_object(plan.model / "config.json")
        offers = tuple(self._choose(name, config) for name in self.backends)
        if self.transport.spec.name == INPROCESS:
            return Local(offers=tuple(filter(None, offers)), plan=plan)
        settings, is_here = self.settings, self.settings.listen is None
        backends = tuple(
            offer.spec.name if offer and is_here else name for offer, name in zip(offers, self.backends, strict=True)
        )
        muster = make_muster(settings, self.transport, private)
        num_here = self.parallel.num_stages * self.parallel.data_parallel if is_here else 1  # they share its memory
        launch = None
        if is_here:
            launch = Launch(
                transport=self.transport.spec.name,
                muster=muster,
                place=make_place(self.transport, private),
                backends=backends,
                pythons=self.pythons,
                peer_timeout=settings.peer_timeout,
                verbose=settings.verbose,
            )
        return Remote(
            model=str(plan.model.resolve()) if is_here else settings.model,
            backends=backends,
            plan=dataclasses.replace(plan, memory_fraction=plan.memory_fraction / num_here),
            muster=muster,
            nursery=Nursery(launch.make_command) if launch else None,
            heartbeat_s=min(1.0, settings.peer_timeout / 2),
        )

    def _choose(self, name: str, config: dict[str, Any]) -> Offer[BackendSpec] | None:
        offers = self.offers.get(name)
        if not offers:
            return None  # of another environment, or another machine
        return offers[0] if name else choose_backend(self.plugins, offers, config)


def read_wishes(settings: ServeSettings, plugins: PluginHost) -> Wishes:
    """Return what a user wants of the stages.

    Raises:
        ParallaxError: if a backend cannot run here that is to run here, or nobody offers the transport.
        UsageError: if the options contradict each other.
    """
    parallel = read_parallel(settings)
    transport = plugins.transports().get(choose_transport_name(settings, parallel))
    backends = split_backends(settings.backend, parallel.num_stages)
    pythons = read_pythons(settings, backends)
    here = {name for name in backends if settings.listen is None and name not in pythons}
    return Wishes(
        settings=settings,
        plugins=plugins,
        parallel=parallel,
        transport=transport,
        backends=backends,
        offers={name: find_backends(plugins, name or None) for name in here},
        pythons=pythons,
    )
