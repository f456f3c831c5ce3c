"""The routes by which administrators see and change the models of a server."""

from __future__ import annotations

from typing import Literal

import fastapi
from fastapi.responses import Response

from parallax_cluster.server.change_request import ChangeAction, ChangeRequest, read_change
from parallax_cluster.server.model_changes import (
    ChangeState,
    ModelChange,
    ModelChanges,
)
from parallax_core.api import needs_role
from parallax_core.api.dialect import (
    ModelEntry,
    ModelState,
    ResponseModel,
    ServedModels,
    describe_answer,
    describe_body,
    describe_errors,
    respond_with,
)


class NodeProgressReply(ResponseModel):
    """What a node has of a model, or is about to load."""

    node: str
    layers: list[int]
    """The first layer, and the one after the last."""
    task: str | None
    """What it does, such as ``loading weights``; null: nothing, or it has not said."""
    done: int
    total: int | None
    """Null: unknown."""
    unit: str
    """The unit of ``done`` and ``total``."""


class KnownModelReply(ResponseModel):
    """A model that the server knows."""

    id: str
    names: list[str]
    """What clients may call it: its other names (``--served-model-name``), and its id."""
    state: ModelState
    error: str | None
    """Why the last attempt to load it failed; null after a success or without an attempt."""
    requests: int
    """The requests that it is answering."""
    nodes: list[NodeProgressReply]


class ModelChangeReply(ResponseModel):
    """A change of the models."""

    id: str
    """Names it among the changes of this server."""
    action: ChangeAction
    model: str
    replaces: str | None
    state: ChangeState
    """``loading``, ``draining`` and ``restoring`` (the old model, after a failure) are under way."""
    error: str | None
    """Why it failed; null: it did not."""
    seconds: float
    """The time since it began, or that it took."""


class KnownModelsReply(ResponseModel, kw_only=True):
    """The answer to ``GET /v1/cluster/models``."""

    object: Literal["cluster.models"] = "cluster.models"
    data: list[KnownModelReply]
    """Those that answer first."""
    change: ModelChangeReply | None
    """The change under way, or the last one; null: there was none."""
    earlier: list[ModelChangeReply]
    """The changes before that one, the latest first; at most 15."""
    load_on_demand: bool
    """Whether a request for a model that is not loaded loads it."""


def make_model_router(models: ServedModels, changes: ModelChanges) -> fastapi.APIRouter:
    """Return the routes."""
    router = fastapi.APIRouter()

    @router.get("/v1/cluster/models", responses=describe_answer(KnownModelsReply) | describe_errors(401, 403))
    @needs_role("admin", shows_guests=True)
    async def show_models(http: fastapi.Request) -> Response:
        """Show the state of each model, what its nodes have loaded, and the change under way or the last one."""
        found = view_models(models, changes)
        return respond_with(found if http.state.role == "admin" else _strip_errors(found))

    @router.post(
        "/v1/cluster/models",
        status_code=202,
        responses=describe_answer(ModelChangeReply, status=202)
        | describe_errors(400, 401, 403, 404, 408, 409, 413, 429, 503),
        openapi_extra=describe_body(ChangeRequest),
    )
    @needs_role("admin")
    async def change_models(http: fastapi.Request) -> Response:
        """Begin to load, unload, switch or forget a model; ``GET /v1/cluster/models`` shows how far it is."""
        return respond_with(_show_change(changes.begin(read_change(await http.body()))), 202)

    return router


def view_models(models: ServedModels, changes: ModelChanges) -> KnownModelsReply:
    """Return the state of all models."""
    shown = [_show_change(each) for each in changes.recent]
    return KnownModelsReply(
        data=show_known(models),
        change=shown[0] if shown else None,
        earlier=shown[1:],
        load_on_demand=changes.on_demand,
    )


def show_known(models: ServedModels) -> list[KnownModelReply]:
    """Return the state of each model, those that answer first."""
    return [_show_known(each, models) for each in models.all]


def _strip_errors(found: KnownModelsReply) -> KnownModelsReply:
    """Return the state of models without errors, which may have paths of this machine in them."""
    for each in (*found.data, *found.earlier, found.change):
        if each is not None:
            each.error = None
    return found


def _show_known(known: ModelEntry, models: ServedModels) -> KnownModelReply:
    nodes = known.hosted.list_progress() if known.hosted is not None else ()
    return KnownModelReply(
        id=known.id,
        names=models.list_names(known),
        state=known.status,
        error=known.error or None,
        requests=known.num_requests,
        nodes=[
            NodeProgressReply(
                node=each.node,
                layers=list(each.layers),
                task=each.task or None,
                done=each.done,
                total=each.total,
                unit=each.unit,
            )
            for each in nodes
        ],
    )


def _show_change(change: ModelChange) -> ModelChangeReply:
    return ModelChangeReply(
        id=change.id,
        action=change.wanted.action,
        model=change.model.id,
        replaces=change.replaces.id if change.replaces is not None else None,
        state=change.state,
        error=change.error or None,
        seconds=change.took_s,
    )
