"""The replicas that the user chose, which stay the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_core.base.taskgroup import wait_for_ever
from parallax_core.contracts.joining import ListeningHead
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.services import ServiceMaker
from parallax_core.server.hosting import FixedModel


class FixedReplicas:
    """The replicas of one model."""

    host = None
    """What opens further models: nothing, since the user chose the stages of this one."""
    join_command = ""
    """Empty: no machine joins by a code made here."""
    await_end = staticmethod(wait_for_ever)
    """Returns never: nothing but its engines ends the server."""

    def __init__(self, deployment: Deployment, maker: ServiceMaker) -> None:
        """Make the replicas of ``deployment``, and its service with ``maker``."""
        self.engines: list[ReplicaEngine] = deployment.make_engines(maker.tell_loss(deployment.model_id))
        service, _ = maker.make(deployment, lambda: self.engines)
        self.first = FixedModel(service)

    def find_plan(self, model: str) -> None:
        """Return None: nothing is planned."""

    @asynccontextmanager
    async def running(self, listening: ListeningHead | None) -> AsyncIterator[None]:
        """Do nothing: the service has all replicas."""
        del listening
        yield
