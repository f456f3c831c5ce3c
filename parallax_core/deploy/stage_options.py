"""Reads and checks the options of ``parallax serve`` that concern stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.base.files import read_object
from parallax_core.base.machine import Machine
from parallax_core.checkpoint.weights_version import state_weights
from parallax_core.cluster.placement.parallel import ParallelConfig, parse_layers
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.transport import TransportSpec
from parallax_core.deploy.additions import NOTHING, Additions
from parallax_core.deploy.backend_options import BackendOptions, collect_options, read_backend_options
from parallax_core.deploy.executors import (
    INPROCESS,
    LocalStages,
    RemoteStages,
    WorkerLauncher,
    make_place,
    make_registry,
)
from parallax_core.deploy.interpreter import find_own_pythons, read_pythons
from parallax_core.deploy.layer_weights import place_layers
from parallax_core.deploy.replicas import STAGE, ReplicaKind, WholeReplicas, find_kind
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.models.stages import RoomCheck, measure_loaded
from parallax_core.node.executor.base import Executor
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


def read_parallel(settings: ServeSettings) -> ParallelConfig:
    """Return the numbers of replicas and stages, their layers and devices, from the settings.

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


def choose_transport_name(settings: ServeSettings, parallel: ParallelConfig, kind: ReplicaKind | None = None) -> str:
    """Return the transport to use: the user's, or else one between processes if there are several.

    Args:
        settings: the user's.
        parallel: the stages and replicas.
        kind: the kind of replicas that serves the whole model, in a process of its own; None: stages do.

    Raises:
        UsageError: if other settings need worker processes, and the user's transport cannot reach any.
    """
    needs = [name for name in ("listen", "python", "spares") if getattr(settings, name)]
    if settings.transport == INPROCESS and needs:
        message = f"--{needs[0]} needs a transport between processes, which {INPROCESS} is not"
        raise UsageError(message, "leave --transport out, or use --transport zmq")
    if settings.transport == INPROCESS and kind:
        message = (
            f"the engine of {kind.backend!r} runs in a process of its own, which --transport {INPROCESS} cannot reach"
        )
        raise UsageError(message, "leave --transport out, or use --transport zmq")
    several = parallel.num_stages * parallel.data_parallel > 1
    return settings.transport or ("zmq" if several or needs or kind else INPROCESS)


def split_backends(text: str | None, num_stages: int) -> tuple[str, ...]:
    """Return the backend of each stage; empty: the best one.

    Raises:
        UsageError: if ``text`` names neither one backend nor one for each stage.
    """
    names = tuple(part.strip() for part in text.split(",")) if text else ("",)
    if len(names) not in {1, num_stages} or (text and not all(names)):
        message = f"{text!r} names {len(names)} backends, and there are {num_stages} stages"
        raise UsageError(message, "name one for all stages, or one for each")
    return names * num_stages if len(names) == 1 else names


Offers = tuple[Offer[BackendSpec] | None, ...]
"""The backend of each stage; None: one of another environment or machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOptions:
    """The options of ``parallax serve`` that concern stages, checked as far as possible without the model."""

    settings: ServeSettings
    plugins: PluginHost
    parallel: ParallelConfig
    transport: Offer[TransportSpec]
    backends: tuple[str, ...]
    """The backend of each stage of a replica; empty: the best one."""
    offers: dict[str, list[Offer[BackendSpec]]]
    """By name in ``backends``: the backends that can run in this environment, the best first."""
    pythons: dict[str, str]
    """By backend: its Python interpreter, if it is not this one."""
    given: BackendOptions
    """The options of backends that were given on the command line."""
    kind: ReplicaKind | None = None
    """The kind of replicas that serves the whole model; None: stages do."""
    added: Additions = NOTHING

    def place_layers(self, config: dict[str, Any]) -> ParallelConfig:
        """Return the layers of each stage; see `deploy.layer_weights.place_layers`."""
        return place_layers(self.parallel, self.plugins, config)

    def check_room(self, plan: StagePlan) -> RoomCheck:
        """Return the check of whether a model fits into the memory of this machine; see `RoomCheck`."""
        offers = self.offers.get(self.backends[0], ())
        is_here = all(probe(offer).device.startswith("cpu") for offer in offers)
        return RoomCheck(self.plugins, offers, plan, (Machine().free_memory() or 0) if is_here else 0)

    def choose_offers(self, config: dict[str, Any]) -> Offers:
        """Return the backend of each stage for the model of ``config``; None: one of another environment or machine."""
        return tuple(self._choose(name, config) for name in self.backends)

    @property
    def place(self) -> str:
        """Where stages are computed, as far as that is known before the model is here, such as ``with mlx on cpu``."""
        kept = "; each stage keeps its layers" if self._is_uneven() and self.added.balance is None else ""
        if self.settings.listen is not None:
            return f"on machines that join{kept}"
        return f"with {' and '.join(self._describe(name) for name in dict.fromkeys(self.backends))}{kept}"

    @property
    def peer_timeout(self) -> float:
        """Seconds of silence after which a peer counts as lost at the latest."""
        return self.settings.peer_timeout or self.transport.spec.timeout_s

    @property
    def uses_workers(self) -> bool:
        """Whether stages run in worker processes."""
        return self.transport.spec.name != INPROCESS

    def make_stages(
        self, plan: StagePlan, offers: Offers, private: Path, model: str = "", registry: NodeRegistry | None = None
    ) -> LocalStages | RemoteStages | WholeReplicas:
        """Return the stages, or replicas of another kind, which make the engines.

        Args:
            plan: the plan of every stage; its model folder needs weights only if stages run in this process.
            offers: the backend of each stage, see `choose_offers`.
            private: a folder for sockets.
            model: the name by which workers of this machine find the model; empty: the folder.
            registry: of the nodes; None: one of its own.
        """
        config = read_object(plan.model / "config.json")
        if not self.uses_workers:
            return LocalStages(plugins=self.plugins, offers=tuple(filter(None, offers)), plan=plan)
        settings, is_here = self.settings, self.settings.listen is None
        backends = tuple(
            offer.spec.name if offer and is_here else name for offer, name in zip(offers, self.backends, strict=True)
        )
        registry = registry or make_registry(settings, self.transport, private, self.plugins, self.added.admission)
        num_stages = self.parallel.num_stages * self.parallel.data_parallel
        num_here = num_stages + settings.spares if is_here else 1  # they share the memory
        launcher = self._make_launcher(registry, private, backends) if is_here else None
        supervisor = WorkerSupervisor(launcher.make_command) if launcher else None
        weights = WeightsCheck(partial(state_weights, plan))
        stages = RemoteStages(
            model=(model or str(plan.model.resolve())) if is_here else settings.model,
            backends=backends,
            plan=dataclasses.replace(plan, memory_fraction=plan.memory_fraction / num_here),
            registry=registry,
            supervisor=supervisor,
            heartbeat_s=min(1.0, self.peer_timeout / 2),
            min_peer_timeout=settings.min_peer_timeout,
            weights=weights,
            balance=self._make_balance(config, offers, plan),
            spares=SparePool(settings.spares, registry, supervisor, weights) if settings.spares else None,
        )
        return WholeReplicas(kind=self.kind, workers=stages) if self.kind else stages

    def _make_balance(
        self, config: dict[str, Any], offers: Offers, plan: StagePlan
    ) -> Callable[[RemoteExecutor], Executor] | None:
        """Return what balances layers by measurement, if they are to be."""
        balance = self.added.balance
        if balance is None or not self._is_uneven():
            return None
        known = next(filter(None, offers), None)
        offer = known or max(self.plugins.backends().offers, key=lambda offer: offer.spec.rank, default=None)
        size = measure_loaded(self.plugins, offer, plan) if offer else None
        return lambda executor: balance(executor, config, size)

    def _make_launcher(self, registry: NodeRegistry, private: Path, backends: tuple[str, ...]) -> WorkerLauncher:
        forwarded = collect_options(self.plugins, self.pythons, self.given)
        empty = private / "empty.toml"
        if forwarded:
            empty.touch()
        return WorkerLauncher(
            transport=self.transport.spec.name,
            registry=registry,
            place=make_place(self.transport, private),
            backends=backends,
            pythons=self.pythons,
            options={**self.given, **forwarded},
            forwarded=frozenset(forwarded),
            empty_config=empty,
            peer_timeout=self.peer_timeout,
            config_file=self.plugins.config_file,
            verbose=self.settings.verbose,
        )

    def _is_uneven(self) -> bool:
        """Return whether stages may differ in speed and the user has not assigned the layers."""
        parallel, is_here = self.parallel, self.settings.listen is None
        is_alike = is_here and len(set(self.backends)) == 1 and not parallel.devices
        return parallel.num_stages > 1 and not parallel.layers and not is_alike

    def _describe(self, name: str) -> str:
        """Return a backend with its device, as ``torch on cpu or mlx on cpu`` if any of these may be the best."""
        offers = self.offers.get(name, ())
        return " or ".join(f"{offer.spec.name} on {probe(offer).device}" for offer in offers) or name

    def _choose(self, name: str, config: dict[str, Any]) -> Offer[BackendSpec] | None:
        offers = self.offers.get(name)
        if not offers:
            return None  # a backend of another environment or machine
        return offers[0] if name else choose_backend(self.plugins, offers, config)


def read_stage_options(settings: ServeSettings, plugins: PluginHost, added: Additions = NOTHING) -> StageOptions:
    """Return the options that concern stages, checked.

    Raises:
        ParallaxError: if a backend cannot run in this environment and has to, or no plugin offers the transport.
        UsageError: if the options contradict each other.
    """
    parallel = read_parallel(settings)
    backends = split_backends(settings.backend, parallel.num_stages)
    kind = find_kind(settings, parallel, plugins)
    transport = plugins.transports().get(choose_transport_name(settings, parallel, kind))
    pythons = {**find_own_pythons(settings, plugins, backends), **read_pythons(settings, backends)}
    here = {name for name in backends if settings.listen is None and name not in pythons}
    return StageOptions(
        settings=settings,
        plugins=plugins,
        parallel=parallel,
        transport=transport,
        backends=backends,
        offers={name: find_stage_backends(plugins, name) for name in here},
        pythons=pythons,
        given=read_backend_options(settings, plugins),
        kind=kind,
        added=added,
    )


def find_stage_backends(plugins: PluginHost, name: str) -> list[Offer[BackendSpec]]:
    """Return the backend called ``name``; without a name, those for stages that can run here, the best first.

    Raises:
        ParallaxError: if there is none.
    """
    return find_backends(plugins, name or None, None if name else STAGE)


def collect_advice(offers: Offers) -> tuple[str, ...]:
    """Return the advice of the backends on how to make them faster."""
    chosen = {offer.spec.name: offer for offer in offers if offer}
    return tuple(advice for offer in chosen.values() if (advice := probe(offer).advice))
