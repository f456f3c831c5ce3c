"""A deployment: the stages, engines and router of one model, made from settings."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parallax_core.base.ids import is_lease
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.joining import ListeningHead
from parallax_core.contracts.node_service import ClientConnections
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.contracts.status import NodeStatus
from parallax_core.deploy.executors import LocalStages, RemoteStages
from parallax_core.deploy.replicas import WholeReplicas
from parallax_core.models.output_parser import OutputParser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.node.status import describe_node, describe_spares
from parallax_core.node.text_engine import TextEngine

logger = logging.getLogger(__name__)


Listening = Callable[[NodeRegistry], AbstractAsyncContextManager[ListeningHead | None]]
"""Returns a context in which machines find a head; see `NodeAdmission.listening`."""
TellLoss = Callable[[int, str], None]
"""Told the rank of a replica and the reason when it is lost."""
ReplicaEngine = PipelineEngine | TextEngine
"""A replica: stages, or one of a kind that a plugin offers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """The parts that serve one model; its stages are opened when its engines start."""

    model_id: str
    folder: Path
    text: ModelTokenizer
    stages: LocalStages | RemoteStages | WholeReplicas
    pipeline: PipelineOptions
    topology: ParallelConfig
    routing: RoutingPolicy
    listening: Listening | None = None
    """Lets other machines find the head once it listens; None: no machine joins."""
    parser: OutputParser | None = None
    """The parser of the model's outputs; None: its text is not parsed."""
    advice: tuple[str, ...] = ()
    """Hints for the user that would make it faster."""

    def make_engines(self, on_lost: TellLoss | None = None) -> list[ReplicaEngine]:
        """Return an engine for each replica; ``on_lost`` is told its rank and the reason when one is lost."""
        engines: list[ReplicaEngine] = []
        options = replace(self.pipeline, releases_requests=lambda: len(self.topology.replicas) > 1)
        for rank, places in enumerate(self.topology.replicas):
            lost = partial(on_lost, rank) if on_lost else None
            if isinstance(self.stages, WholeReplicas):
                engines.append(self.stages.make_engine(rank, places[0], options, self.text.decode, lost))
            else:
                executor = self.stages.make_executor(rank, places, options)
                engines.append(PipelineEngine(executor, self.text.decode, options, lost))
        return engines

    def list_waiting(self) -> list[NodeStatus]:
        """Return the nodes that have joined and have no stage: the spares, and those with nothing to do; no leases."""
        registry, spares = self.registry, self._spares
        joined = registry.waiting if registry is not None else ()
        waiting = [describe_node(each) for each in joined if not is_lease(each.name)]
        return [*describe_spares(spares.spares if spares else ()), *waiting]

    def list_nodes(self) -> list[NodeStatus]:
        """Return the nodes that have joined, with and without a stage; leases belong to the nodes that hold them."""
        joined = self.registry.joined if self.registry is not None else ()
        return [describe_node(each) for each in joined if not is_lease(each.name)]

    def share_api(self, clients: ClientConnections) -> None:
        """Give services of the head the connections of ``clients``; no effect without a registry."""
        if self.registry is not None:
            self.registry.clients = clients

    @asynccontextmanager
    async def nodes_joining(self) -> AsyncIterator[ListeningHead | None]:
        """Accept nodes within this context, if any may join; yields where machines join by a code."""
        registry, listening = self.registry, None
        try:
            async with AsyncExitStack() as stack:
                if registry is not None:
                    await registry.start()
                    logger.info("head listens at %s", registry.address)
                    if self.listening is not None:
                        listening = await stack.enter_async_context(self.listening(registry))
                yield listening
        finally:
            if self._spares is not None:
                await self._spares.stop()
            if registry is not None:
                await registry.stop()

    @property
    def registry(self) -> NodeRegistry | None:
        """The registry of its nodes; None: its stages run in this process."""
        match self.stages:
            case RemoteStages() as stages:
                return stages.registry
            case WholeReplicas(workers=stages):
                return stages.registry
            case _:
                return None

    @property
    def _spares(self) -> SparePool | None:
        return self.stages.spares if isinstance(self.stages, RemoteStages) else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Router]:
        """Open the stages and yield the engine that serves the model; stop it at the end.

        Raises:
            ParallaxError: if a stage cannot be opened.
        """
        engines = self.make_engines()
        find_room = partial(find_max_length, engines)
        router = Router(engines, self.routing, find_room, self.pipeline.recovery_timeout_s)
        async with self.nodes_joining():
            await router.start()
            try:
                yield router
            finally:
                await router.stop()


def find_max_length(engines: Sequence[ReplicaEngine]) -> int:
    """Return the longest sequence that every replica can serve that was ready, in tokens; 0 before one was."""
    return min((length for engine in engines if (length := engine.max_length)), default=0)
