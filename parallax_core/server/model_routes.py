"""The routes that list the models, and those by which administrators change them."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import fastapi
import msgspec
from fastapi.responses import Response
from pydantic import Field

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.status import ModelState
from parallax_core.contracts.surface import needs_role
from parallax_core.server.fields import Strict, TextField
from parallax_core.server.json_response import respond_with
from parallax_core.server.model_changes import (
    DRAIN_S,
    ChangeAction,
    ChangeState,
    ModelChange,
    ModelChanges,
    WantedChange,
)
from parallax_core.server.openapi import describe_answer, describe_body, describe_errors
from parallax_core.server.response_models import ModelReply, ModelsReply, ResponseModel
from parallax_core.server.served_models import ModelEntry, ServedModels
from parallax_core.server.strict_json import read_body

MAX_BYTES = 8192
"""The largest body: it is read on the event loop."""
LONGEST_DRAIN_S = 86400.0

NameField = Annotated[TextField, Field(min_length=1, max_length=1024)]


class ChangeRequest(Strict):
    """The body of ``POST /v1/cluster/models``."""

    action: ChangeAction
    """``load`` a model beside the others, ``unload`` one, ``switch`` from one to another, or ``forget`` one that is not
    loaded."""
    model: NameField
    """The model to change: its id; to load it also a folder, a hub id such as ``org/name``, ``pypi:NAME``, or an
    alias."""
    replaces: NameField | None = None
    """For ``switch``: the id of the model to unload; needed if several are loaded."""
    drain_seconds: Annotated[float, Field(ge=0, le=LONGEST_DRAIN_S)] = DRAIN_S
    """The seconds that running requests of the model to unload may take to end."""
    drain_first: bool = False
    """For ``switch``: unload before loading, for when there is no memory for both. If loading fails, the old model is
    loaded again."""


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


def make_router(models: ServedModels, changes: ModelChanges) -> fastapi.APIRouter:
    """Return the routes."""
    router, created = fastapi.APIRouter(), int(time.time())

    @router.get("/v1/models", responses=describe_answer(ModelsReply) | describe_errors(401, 403))
    async def show_all() -> Response:
        """List the models that are known, those that answer first."""
        named = [(known, name) for known in models.all for name in models.list_names(known)]
        return respond_with(ModelsReply(data=[describe_model(known, created, name) for known, name in named]))

    @router.get("/v1/models/{model_id:path}", responses=describe_answer(ModelReply) | describe_errors(401, 403, 404))
    async def retrieve_model(model_id: str) -> Response:
        """Describe a model that this server knows."""
        return respond_with(describe_model(models.get(model_id), created, model_id))

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
        data = await http.body()
        if len(data) > MAX_BYTES:
            message = f"the body has {len(data)} bytes, and may have {MAX_BYTES}"
            raise InvalidRequest(message)
        return respond_with(_show_change(changes.begin(_read_change(read_body(data, ChangeRequest)))), 202)

    return router


def _read_change(body: ChangeRequest) -> WantedChange:
    """Return the change that a body asks for.

    Raises:
        InvalidRequest: if it has a field that means nothing for its action.
    """
    if body.action != "switch":
        for name, value in (("replaces", body.replaces), ("drain_first", body.drain_first or None)):
            if value is not None:
                message = f"'{name}' is for switching only, and 'action' is {body.action!r}"
                raise InvalidRequest(message, name)
    return WantedChange(
        action=body.action,
        model=body.model,
        replaces=body.replaces,
        drain_s=body.drain_seconds,
        drain_first=body.drain_first,
    )


def view_models(models: ServedModels, changes: ModelChanges) -> KnownModelsReply:
    """Return the state of all models."""
    shown = [_show_change(each) for each in changes.recent]
    return KnownModelsReply(
        data=[_show_known(each, models) for each in models.all],
        change=shown[0] if shown else None,
        earlier=shown[1:],
        load_on_demand=changes.on_demand,
    )


def _strip_errors(found: KnownModelsReply) -> KnownModelsReply:
    """Return the state of models without errors, which may have paths of this machine in them."""
    for each in (*found.data, *found.earlier, found.change):
        if each is not None:
            each.error = None
    return found


def describe_model(known: ModelEntry, created: int, name: str = "") -> ModelReply:
    """Return a model in OpenAI's form.

    Args:
        known: the model.
        created: the start of the server, in seconds since 1970.
        name: the name by which the client knows it; empty: its id.
    """
    if known.hosted is None:
        return ModelReply(id=name or known.id, root=known.id, created=created, status=known.status)
    return msgspec.structs.replace(known.hosted.service.describe(known.status), id=name or known.id)


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
