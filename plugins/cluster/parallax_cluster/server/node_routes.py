"""The routes that drain machines of a cluster, take them back, and remove them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Protocol, runtime_checkable

from fastapi import APIRouter, Path
from fastapi.responses import Response

from parallax_cluster.server.replies import ClusterReply
from parallax_cluster.server.view import ClusterView, read_cluster, show_cluster
from parallax_core.api import UnknownName, name_machine, needs_role
from parallax_core.api.dialect import ChangeRefused, ServedModels, describe_answer, describe_errors, respond_with

NodePath = Annotated[str, Path(max_length=256, description="The name of a node that has joined, or of its machine.")]


@runtime_checkable
class DrainableNodes(Protocol):
    """A `HostedModel` whose nodes can be drained and removed."""

    async def note_drained(self, node: str, *, is_drained: bool) -> None:
        """Drain the machine of a node, or take it back.

        Raises:
            UnknownName: if it has not joined, or is not drained.
            ParallaxError: if that cannot be kept for a restart.
        """

    async def remove_machine(self, node: str) -> None:
        """Remove the machine of a node for good.

        Raises:
            UnknownName: if it has no key of its own by which it may join.
            ParallaxError: if that cannot be kept.
        """


def make_node_router(models: ServedModels) -> APIRouter:
    """Return the routes."""
    router, shown = APIRouter(), describe_answer(ClusterReply) | describe_errors(401, 403, 404)

    @router.post("/v1/nodes/{node:path}/drain", responses=shown)
    @needs_role("admin")
    async def drain_node(node: NodePath) -> Response:
        """Give the machine of a node no layers; it keeps those that it has until others have taken them over."""
        await _find_host(models).note_drained(node, is_drained=True)
        return await answer(read_cluster(models), is_admin=True)

    @router.post("/v1/nodes/{node:path}/resume", responses=shown)
    @needs_role("admin")
    async def resume_node(node: NodePath) -> Response:
        """Give a drained machine layers again, where that is worth it."""
        await _find_host(models).note_drained(node, is_drained=False)
        return await answer(read_cluster(models), is_admin=True)

    @router.post("/v1/nodes/{node:path}/remove", responses=shown | describe_errors(409))
    @needs_role("admin")
    async def remove_node(node: NodePath) -> Response:
        """Remove the drained machine of a node for good: its key admits it no more, and its links end within a second.

        It is drained first, until it has no layers. A machine of that name that is not joined now is removed at once.
        """
        host = _find_host(models)
        _check_unused(node, read_cluster(models))
        await host.remove_machine(node)
        return await answer(read_cluster(models), is_admin=True)

    return router


def _check_unused(node: str, state: ClusterView) -> None:
    """Raise ChangeRefused if the machine of a node is in service."""
    machine = name_machine(node)
    for each in state.members:
        if name_machine(each.node.name) == machine and (not each.is_drained or each.state != "idle"):
            what = "has layers" if each.is_drained else "is not drained"
            raise ChangeRefused(f"{each.node.name} {what}", f"drain it first: `parallax nodes drain {machine}`")


def _find_host(models: ServedModels) -> DrainableNodes:
    """Return a model whose machines are those of all; raises UnknownName if nodes cannot be drained."""
    for model in models.loaded:
        hosted: object = model.hosted
        if isinstance(hosted, DrainableNodes):
            return hosted
    hint = "they can on one that `parallax run` has started, with a model that is loaded or being loaded"
    raise UnknownName("nodes cannot be drained on this server", hint)


async def answer(state: ClusterView, *, is_admin: bool) -> Response:
    """Return the answer that shows a cluster, which is written on another thread: it may have many nodes."""

    def write() -> Response:
        cluster = show_cluster(state)
        return respond_with(cluster if is_admin else _strip_secrets(cluster))

    return await asyncio.to_thread(write)


def _strip_secrets(cluster: ClusterReply) -> ClusterReply:
    """Return a cluster without the join code, and without errors, which may have paths of this machine in them."""
    if cluster.plan is not None:
        cluster.plan.join_command = None
    for model in cluster.models:
        model.error = None
    return cluster
