"""The route ``GET /v1/cluster/events``: the changes of a cluster, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from parallax_core.server.cluster_models import ClusterReply
from parallax_core.server.cluster_view import view_cluster
from parallax_core.server.openapi import describe_cluster_events, describe_errors
from parallax_core.server.response import SseResponse
from parallax_core.server.served_models import ServedModels
from parallax_core.server.sse import write_named

LOOK_S = 0.25
"""Seconds between two looks at the cluster, for all clients together."""
MOST_UNREAD = 64
"""The most events that wait for a client; one that reads more slowly is disconnected."""

Change = tuple[str, dict[str, Any]]
"""The name of an event, and its data."""


class ClusterFeed:
    """Looks at a cluster, as long as clients listen, and tells all of them what has changed."""

    def __init__(self, models: ServedModels) -> None:
        """Look at the cluster of ``models``."""
        self._models = models
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def listen(self) -> AsyncIterator[bytes]:
        """Yield the whole state, and then each change, as events."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_UNREAD)
        state = view_cluster(self._models)
        self._listeners.add(queue)  # at once: what changes while the client reads the state comes next
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(state))
        try:
            yield write_event("cluster", state.model_dump(mode="json"))
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    async def _look(self, before: ClusterReply) -> None:
        while self._listeners:
            await asyncio.sleep(LOOK_S)
            now = view_cluster(self._models)
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


def find_changes(before: ClusterReply, now: ClusterReply) -> Iterator[Change]:
    """Yield what has changed between two states, apart from loads and counters.

    ``node_joined``, ``node_changed`` and ``node_left`` have a node, ``plan`` the plan, ``status`` the health of the
    server and of its replicas, and ``models`` the state of each model.
    """
    old, new = ({each.node: each.model_dump(mode="json") for each in state.nodes} for state in (before, now))
    yield from (("node_left", old[name]) for name in old if name not in new)
    yield from (("node_joined", new[name]) for name in new if name not in old)
    yield from (("node_changed", new[name]) for name in new if name in old and _tell_apart(old[name], new[name]))
    plans = [_strip_plan(state) for state in (before, now)]
    if plans[0] != plans[1] and now.plan is not None:
        yield "plan", now.plan.model_dump(mode="json")
    states = [_find_status(state) for state in (before, now)]
    if states[0] != states[1]:
        yield "status", states[1]
    if before.models != now.models:
        yield "models", {"models": [each.model_dump(mode="json") for each in now.models]}


def _tell_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether a node does something else, or another process has its name; its figures always vary a little."""
    names = ("pid", "state", "model", "replica", "layers", "idle_reason", "slowdown")
    return any(one[name] != other[name] for name in names) or (one["profile"] is None) != (other["profile"] is None)


def _strip_plan(state: ClusterReply) -> dict[str, Any] | None:
    if state.plan is None:
        return None
    plan: dict[str, Any] = state.plan.model_dump(mode="json")
    for replica in plan["replicas"]:
        del replica["measured_token_seconds"]
    return plan


def _find_status(state: ClusterReply) -> dict[str, Any]:
    replicas = [
        {"model": each.model, "rank": each.rank, "status": each.status, "reason": each.reason}
        for each in state.replicas
    ]
    return {"status": state.status, "reason": state.reason, "replicas": replicas}


def write_event(name: str, data: dict[str, Any]) -> bytes:
    """Return an event with data as JSON."""
    return write_named(name, json.dumps(data, separators=(",", ":")).encode())


def make_router(models: ServedModels) -> APIRouter:
    """Return the route."""
    router, feed = APIRouter(), ClusterFeed(models)

    @router.get(
        "/v1/cluster/events",
        response_class=Response,
        responses={**describe_cluster_events(ClusterReply), **describe_errors(401, 403)},
    )
    async def follow_cluster() -> Response:
        """Follow the cluster: its whole state first, and then each change, as server-sent events."""
        return SseResponse(feed.listen())

    return router
