"""What the options of ``parallax serve`` say of stages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.base.files import read_object
from parallax_core.checkpoint.weights_version import state_weights
from parallax_core.cluster.placement.layer_cost import LayerCosts
from parallax_core.cluster.placement.parallel import ParallelConfig, parse_layers
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, DType, StagePlan
from parallax_core.contracts.transport import TransportSpec
from parallax_core.deploy.executors import (
    INPROCESS,
    LocalStages,
    RemoteStages,
    WorkerLauncher,
    make_place,
    make_registry,
)
from parallax_core.deploy.interpreter import read_pythons
from parallax_core.deploy.layer_weights import cost_layers, place_layers
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


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


Offers = tuple[Offer[BackendSpec] | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOptions:
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

    def choose_offers(self, config: dict[str, Any]) -> Offers:
        """Return what runs each stage of the model of ``config``; None: what another environment or machine has."""
        return tuple(self._choose(name, config) for name in self.backends)

    @property
    def uses_workers(self) -> bool:
        """Whether stages run in processes of their own."""
        return self.transport.spec.name != INPROCESS

    def make_stages(
        self, plan: StagePlan, offers: Offers, private: Path, model: str = ""
    ) -> LocalStages | RemoteStages:
        """Return what opens stages here or elsewhere.

        Args:
            plan: what holds for every stage; of the folder of its model, the weights are needed by stages here only.
            offers: what runs each stage, see `choose_offers`.
            private: a folder for sockets.
            model: as processes of this machine find it; empty: the folder.
        """
        config = read_object(plan.model / "config.json")
        if not self.uses_workers:
            return LocalStages(plugins=self.plugins, offers=tuple(filter(None, offers)), plan=plan)
        settings, is_here = self.settings, self.settings.listen is None
        backends = tuple(
            offer.spec.name if offer and is_here else name for offer, name in zip(offers, self.backends, strict=True)
        )
        registry = make_registry(settings, self.transport, private)
        num_here = self.parallel.num_stages * self.parallel.data_parallel if is_here else 1  # they share its memory
        launch = None
        if is_here:
            launch = WorkerLauncher(
                transport=self.transport.spec.name,
                registry=registry,
                place=make_place(self.transport, private),
                backends=backends,
                pythons=self.pythons,
                peer_timeout=settings.peer_timeout,
                verbose=settings.verbose,
            )
        return RemoteStages(
            model=(model or str(plan.model.resolve())) if is_here else settings.model,
            backends=backends,
            plan=dataclasses.replace(plan, memory_fraction=plan.memory_fraction / num_here),
            registry=registry,
            supervisor=WorkerSupervisor(launch.make_command) if launch else None,
            heartbeat_s=min(1.0, settings.peer_timeout / 2),
            weights=WeightsCheck(partial(state_weights, plan)),
            layer_costs=self._weigh(config, plan.dtype),
        )

    def _weigh(self, config: dict[str, Any], dtype: DType) -> LayerCosts | None:
        """Return what the layers weigh, where that decides which stage gets them."""
        if not self._is_uneven():
            return None
        return cost_layers(self.plugins, config, dtype)

    def _is_uneven(self) -> bool:
        """Return whether stages may differ in speed, and nobody has said which layers they get."""
        parallel, is_here = self.parallel, self.settings.listen is None
        is_alike = is_here and len(set(self.backends)) == 1 and not parallel.devices
        return parallel.num_stages > 1 and not parallel.layers and not is_alike

    def _choose(self, name: str, config: dict[str, Any]) -> Offer[BackendSpec] | None:
        offers = self.offers.get(name)
        if not offers:
            return None  # of another environment, or another machine
        return offers[0] if name else choose_backend(self.plugins, offers, config)


def read_stage_options(settings: ServeSettings, plugins: PluginHost) -> StageOptions:
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
    return StageOptions(
        settings=settings,
        plugins=plugins,
        parallel=parallel,
        transport=transport,
        backends=backends,
        offers={name: find_backends(plugins, name or None) for name in here},
        pythons=pythons,
    )


def collect_advice(offers: Offers) -> tuple[str, ...]:
    """Return what the user could do for more speed, as those of ``offers`` that are here say."""
    chosen = {offer.spec.name: offer for offer in offers if offer}
    return tuple(advice for offer in chosen.values() if (advice := probe(offer).advice))
