"""Describes what a server of several machines does, for the terminal of ``parallax run``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from parallax_cluster.cli.nodes import render
from parallax_cluster.cli.served_models import describe_loading
from parallax_cluster.cli.status import Cluster
from parallax_cluster.server.model_routes import show_known
from parallax_cluster.server.view import read_cluster, show_cluster
from parallax_core.api.dialect import ServedModels


class RunView:
    """Looks at a server at intervals."""

    def __init__(self, models: ServedModels, clock: Callable[[], float] = time.monotonic) -> None:
        self._models, self._clock = models, clock
        self._counted: tuple[float, int] | None = None
        """When tokens were counted last, and how many; None: they were not."""

    async def look(self) -> list[str]:
        """Return the lines to show."""
        state = read_cluster(self._models)
        known = msgspec.to_builtins(show_known(self._models))
        shown = await asyncio.to_thread(lambda: msgspec.to_builtins(show_cluster(state)))  # there may be many nodes
        return [*render_state(shown, known), self._count(shown)]

    def _count(self, cluster: Cluster) -> str:
        """Return a line on the requests, and the tokens that have been computed since the last look."""
        running, waiting = (sum(each[name] for each in cluster["replicas"]) for name in ("running", "waiting"))
        tokens = sum(each["stages"][0]["tokens"] for each in cluster["replicas"] if each["stages"])
        now = self._clock()
        then, before = self._counted or (now, tokens)
        self._counted = now, tokens
        speed = max(0, tokens - before) / (now - then) if now > then else 0.0
        return f"requests: {running} running, {waiting} waiting, {speed:.0f} tokens/s"


def render_state(cluster: Cluster, known: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the layers and loads of the nodes, and the next thing the server waits for; ``known`` are the models."""
    yield "; ".join(f"{each['id']}: {each['state']}" for each in cluster["models"]) or "no model"
    plan = cluster["plan"]
    waits_for = plan.pop("waits_for") if plan is not None else None
    if plan is not None:
        plan |= {"waits_for": None, "join_command": None}
    yield from (lines := list(render(cluster)))
    for each in known:
        if loading := describe_loading(each):
            yield f"loads {each['id']}: {loading}"
    if waits_for:
        if waits_for not in lines:
            yield f"it waits: {waits_for}"
        yield "to add a machine, type the command above there: parallax join ..."
