"""Records what happens to a cluster, so that an operator can look back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from parallax_cluster.config.home import event_file
from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.membership.event_store import Event, EventStore
from parallax_core.api import ParallaxError
from parallax_core.api.node import WatchedWork

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at the cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts:
    """What is recorded when it changes."""

    nodes: frozenset[str] = frozenset()
    """The nodes that have joined, by name."""
    drained: frozenset[str] = frozenset()
    """The machines that are drained."""
    plans: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By model: the places of its layers, and why they are there."""
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By model: its state, and the reason."""


NOTHING = ClusterFacts()


def find_events(before: ClusterFacts, now: ClusterFacts, at: float) -> Iterator[Event]:
    """Yield what has changed between two looks."""
    changes = (
        ("node_joined", now.nodes - before.nodes),
        ("node_left", before.nodes - now.nodes),
        ("node_drained", now.drained - before.drained),
        ("node_resumed", before.drained - now.drained),
    )
    for kind, names in changes:
        yield from (Event(time=at, kind=kind, subject=name) for name in sorted(names))
    for model, (places, reason) in now.plans.items():
        if before.plans.get(model, ("", ""))[0] != places:
            text = f"{places} ({reason})" if reason else places
            yield Event(time=at, kind="plan", subject=model, text=text)
    for model, (state, reason) in now.states.items():
        if before.states.get(model, ("", ""))[0] != state:  # reasons may say how far something is
            yield Event(time=at, kind="status", subject=model, text=f"{state}: {reason}" if reason else state)


def look_at(pool: NodePool, models: Mapping[str, JoinedModel]) -> ClusterFacts:
    """Return the facts of the nodes in a pool, and of the models that it serves."""
    return ClusterFacts(
        nodes=frozenset(node.name for node in pool.firsts),
        drained=frozenset(pool.drained.names),
        plans={name: models[name].describe_plan() for name in pool.models},
        states={name: models[name].describe_health() for name in pool.models},
    )


@asynccontextmanager
async def recording(look: Callable[[], ClusterFacts]) -> AsyncIterator[None]:
    """Keep what happens in this user's file while in the context."""
    work = WatchedWork(record(EventStore(event_file()), look), _note_end)
    try:
        yield
    finally:
        await work.cancel()


def _note_end(error: BaseException) -> None:
    logger.error("what happens is not recorded any more", exc_info=error)


async def record(store: EventStore, look: Callable[[], ClusterFacts]) -> None:
    """Keep each change of the facts of ``look`` in ``store``, until cancelled; a full disk loses events only."""
    before, is_told = NOTHING, False
    while True:
        now = look()
        if events := list(find_events(before, now, time.time())):
            try:
                await asyncio.to_thread(store.add, events)
                is_told = False
            except ParallaxError as error:
                if not is_told:
                    logger.warning("%s; what happens is in the log only", error.message)
                is_told = True
        before = now
        await asyncio.sleep(LOOK_S)
