"""The routes that show a cluster and its changes, move its layers, and drain and readmit replicas."""

from __future__ import annotations

from typing import Annotated, Protocol, runtime_checkable

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from parallax_cluster.server.events import ClusterFeed
from parallax_cluster.server.history import make_history_router
from parallax_cluster.server.model_changes import ModelChanges
from parallax_cluster.server.model_routes import make_model_router
from parallax_cluster.server.node_metrics import NodeCollector
from parallax_cluster.server.node_routes import answer, make_node_router
from parallax_cluster.server.replies import ClusterReply, ReplicaReply, show_replica
from parallax_cluster.server.view import describe_replicas, read_cluster
from parallax_cluster.server.what_if_route import make_what_if_router
from parallax_core.api import Dialect, UnknownName, needs_role
from parallax_core.api.deployment import Drainable
from parallax_core.api.dialect import (
    ServedModels,
    ServerOptions,
    Service,
    SseResponse,
    describe_answer,
    describe_errors,
    describe_event_stream,
    respond_with,
)

EVENTS = (
    "Server-sent events: first `cluster` with the whole state, and then `node_joined`, `node_changed`, `node_left`, "
    "`plan`, `status` and `models`."
)
ModelQuery = Annotated[
    str | None, Query(max_length=1024, description="The model of the replica; by default the main one.")
]
RankPath = Annotated[int, Path(ge=0, description="The number of a replica, from 0.")]


@runtime_checkable
class Rebalancing(Protocol):
    """A `HostedModel` whose layers move between nodes."""

    def rebalance(self) -> None:
        """Plan the layers anew soon, and move them if that is worth it, even while they rest or are held."""


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes of a cluster for a server."""
    del options
    models.collectors.append(NodeCollector(lambda: read_cluster(models)))
    changes = models.changes if isinstance(models.changes, ModelChanges) else ModelChanges(models, None)
    routers = (
        make_router(models),
        make_model_router(models, changes),
        make_node_router(models),
        make_history_router(),
        make_what_if_router(models),
    )
    return Dialect(routers=routers, run=changes.run)


def make_router(models: ServedModels) -> APIRouter:
    """Return the routes."""
    router, feed = APIRouter(), ClusterFeed(models)
    shown = describe_answer(ReplicaReply) | describe_errors(400, 401, 403, 404, 429, 503)

    @router.get("/v1/cluster", responses=describe_answer(ClusterReply) | describe_errors(401, 403))
    @needs_role("admin", shows_guests=True)
    async def get_cluster(http: Request) -> Response:
        """Show the replicas, their stages, and the nodes that have joined; also before the server is ready."""
        return await answer(read_cluster(models), is_admin=http.state.role == "admin")

    @router.get(
        "/v1/cluster/events",
        response_class=Response,
        responses={**describe_event_stream(EVENTS, ClusterReply), **describe_errors(401, 403)},
    )
    @needs_role("admin")
    async def follow_cluster() -> Response:
        """Follow the cluster: its whole state first, and then each change, as server-sent events."""
        return SseResponse(feed.listen())

    @router.post("/v1/cluster/rebalance", responses=describe_answer(ClusterReply) | describe_errors(401, 403, 404))
    @needs_role("admin")
    async def rebalance() -> Response:
        """Plan and move layers if it is worth it, even shortly after a move or with --hold-moves."""
        hosted: list[object] = [each.hosted for each in models.loaded]
        movable = [model for model in hosted if isinstance(model, Rebalancing)]
        if not movable:
            raise UnknownName("layers do not move on this server", "they do on one that `parallax run` has started")
        for model in movable:
            model.rebalance()
        return await answer(read_cluster(models), is_admin=True)

    @router.post("/v1/replicas/{rank}/drain", responses=shown)
    @needs_role("admin")
    async def drain_replica(rank: RankPath, model: ModelQuery = None) -> Response:
        """Send a replica no new requests; it finishes those it has, and keeps the model."""
        service = _find_service(models, model)
        _find_drainable(service, rank).drain(rank)
        return _show(service, rank)

    @router.post("/v1/replicas/{rank}/readmit", responses=shown)
    @needs_role("admin")
    async def readmit_replica(rank: RankPath, model: ModelQuery = None) -> Response:
        """Send a replica requests again."""
        service = _find_service(models, model)
        _find_drainable(service, rank).readmit(rank)
        return _show(service, rank)

    return router


def _find_service(models: ServedModels, model: str | None) -> Service:
    """Return the service of a model, or of the main one.

    Raises:
        UnknownModel: if this server does not know the model.
        ModelNotLoaded: if it is not loaded.
    """
    if model is None:
        return models.main
    known = models.get(model)
    if known.hosted is None:
        raise known.describe_absence()
    return known.hosted.service


def _show(service: Service, rank: int) -> Response:
    """Return the response for the replica of a rank; raises UnknownName if it has ended meanwhile."""
    for status in describe_replicas(service.engine):
        if status.rank == rank:
            return respond_with(show_replica(status, service.model_id))
    raise UnknownName(f"there is no replica {rank}")


def _find_drainable(service: Service, rank: int) -> Drainable:
    """Return the engine if its replicas can be drained.

    Raises:
        UnknownName: if they cannot.
    """
    if not isinstance(service.engine, Drainable):
        raise UnknownName(f"there is no replica {rank}", "the replicas of this server cannot be drained")
    return service.engine
