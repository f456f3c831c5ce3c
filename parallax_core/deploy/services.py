"""Makes the service of a model, with its router and its reader of bodies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from parallax_core.contracts.event import StageLoss
from parallax_core.deploy.deployment import Deployment, ReplicaEngine, TellLoss, find_max_length
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.events.requests import NO_EVENTS, RequestEvents
from parallax_core.node.routing.router import Router
from parallax_core.server.body_messages import ParserTraits, ReaderSetup
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool

ListEngines = Callable[[], Sequence[ReplicaEngine]]
"""Returns the engines of a model's replicas, which may change."""


class ServiceMaker:
    """Makes the services of models; they share the quota, meters and stores of ``models``."""

    def __init__(self, models: ServedModels, options: ServerOptions, event_bus: EventBus) -> None:
        """Make services for ``models``; ``event_bus`` is told of their requests and losses."""
        self.models = models
        """The models whose services it makes."""
        self._options = options
        self._event_bus = event_bus

    def make(self, deployment: Deployment, list_engines: ListEngines) -> tuple[Service, Router]:
        """Return the service of a deployment, and its router."""

        def find_room() -> int:
            return find_max_length(list_engines())

        router = self._make_router(deployment, list_engines(), find_room)
        service = Service(
            deployment.model_id,
            router,
            deployment.text,
            self._make_reader(deployment),
            self.models.meters,
            find_max_length=find_room,
            quota=self.models.quota,
            backlog=deployment.pipeline.backlog,
            parser=deployment.parser,
            options=self._options,
            adapters=self.models.adapters,
        )
        return service, router

    def tell_loss(self, model: str) -> TellLoss:
        """Return what is to be told of the losses of a model's replicas."""
        return partial(_tell_loss, self._event_bus, model)

    def _make_router(
        self, deployment: Deployment, engines: Sequence[ReplicaEngine], find_room: Callable[[], int]
    ) -> Router:
        timeout_s, policy = deployment.pipeline.recovery_timeout_s, deployment.routing
        events = RequestEvents(deployment.model_id, self._event_bus.tell) if self._event_bus else NO_EVENTS
        return Router(engines, policy, find_room, timeout_s, events)

    def _make_reader(self, deployment: Deployment) -> TokenizerPool:
        """Return the reader of request bodies, in processes of its own."""
        limits = PoolLimits.of(self._options, deployment.pipeline.limits)
        traits = ParserTraits.of(deployment.parser.spec) if deployment.parser else ParserTraits()
        traits = msgspec.structs.replace(traits, may_list_calls=self._options.lists_calls)
        setup = ReaderSetup(
            folder=str(deployment.folder),
            model_id=deployment.model_id,
            bodies=self.models.bodies,
            generation=deployment.text.generation,
            parser=traits,
        )
        return TokenizerPool(setup, limits)


def _tell_loss(event_bus: EventBus, model: str, replica: int, reason: str) -> None:
    event_bus.tell(StageLoss(at=time.time(), model=model, replica=replica, reason=reason))
