"""The changes of a cluster, as server-sent events for ``GET /v1/cluster/events``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from parallax_cluster.server.view import ClusterView, read_cluster, show_cluster, show_member, show_models, show_plan
from parallax_core.api.deployment import PlanStatus
from parallax_core.api.dialect import ServedModels, write_named

LOOK_S = 0.25
"""Seconds between two looks at the cluster, for all clients together."""
MOST_UNREAD = 64
"""The most events that wait for a client; one that reads more slowly is disconnected."""

Change = tuple[str, Any]
"""The name of an event, and its data."""


class ClusterFeed:
    """Looks at a cluster, as long as clients listen, and tells all of them what has changed."""

    def __init__(self, models: ServedModels) -> None:
        """Look at the cluster of ``models``."""
        self._models = models
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def num_listeners(self) -> int:
        """The number of clients that listen."""
        return len(self._listeners)

    async def listen(self) -> AsyncIterator[bytes]:
        """Yield the whole state, and then each change, as events."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_UNREAD)
        state = read_cluster(self._models)
        self._listeners.add(queue)  # at once: what changes while the client reads the state comes next
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(state))
        try:
            yield await asyncio.to_thread(lambda: write_event("cluster", show_cluster(state)))
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    async def _look(self, before: ClusterView) -> None:
        while self._listeners:
            await asyncio.sleep(LOOK_S)
            now = read_cluster(self._models)
            for name, data in find_changes(before, now):
                self._tell(write_event(name, data))
            before = now

    def _tell(self, event: bytes) -> None:
        for queue in list(self._listeners):
            if queue.full():
                self._listeners.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)


def find_changes(before: ClusterView, now: ClusterView) -> Iterator[Change]:
    """Yield what has changed between two states, apart from loads and counters.

    ``node_joined``, ``node_changed`` and ``node_left`` have a node, ``plan`` the plan, ``status`` the health of the
    server and of its replicas, and ``models`` the state of each model.
    """
    old, new = ({each.node.name: each for each in state.members} for state in (before, now))
    yield from (("node_left", show_member(each)) for name, each in old.items() if name not in new)
    yield from (("node_joined", show_member(each)) for name, each in new.items() if name not in old)
    changed = (each for name, each in new.items() if name in old and not each.does_as(old[name]))
    yield from (("node_changed", show_member(each)) for each in changed)
    if _strip_plan(before) != _strip_plan(now) and (plan := show_plan(now)) is not None:
        yield "plan", plan
    states = [_find_status(state) for state in (before, now)]
    if states[0] != states[1]:
        yield "status", states[1]
    if before.models != now.models:
        yield "models", {"models": show_models(now)}


def _strip_plan(state: ClusterView) -> PlanStatus | None:
    """Return the plan without what belongs to nodes."""
    return replace(state.plan, idle={}, slowdowns={}, unreachable=frozenset()) if state.plan is not None else None


def _find_status(state: ClusterView) -> dict[str, Any]:
    replicas = [
        {"model": model, "rank": each.rank, "status": each.health.state, "reason": each.health.reason}
        for model, found in state.replicas.items()
        for each in found
    ]
    return {"status": state.health.state, "reason": state.health.reason, "replicas": replicas}


def write_event(name: str, data: object) -> bytes:
    """Return an event with data as JSON."""
    return write_named(name, msgspec.json.encode(data))
