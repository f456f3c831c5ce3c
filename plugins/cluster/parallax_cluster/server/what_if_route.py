"""The route that predicts the speed with a further machine."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, Protocol, runtime_checkable

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_cluster.layer_plan import LayerPlan
from parallax_cluster.placement.devices import DEVICES
from parallax_cluster.server.replies import PredictionReply
from parallax_cluster.server.view import show_prediction
from parallax_core.api import InvalidRequest, UnknownName, UsageError, needs_role
from parallax_core.api.dialect import ResponseModel, ServedModels, describe_answer, describe_errors, respond_with

Change = Annotated[
    str | None,
    Query(max_length=300, description="Such as `+1xRTX4090@20ms/100mbit`, or `-NAME`, as `parallax cluster plan` has."),
]


class PlannedChangeReply(ResponseModel):
    """A prediction for a change of the cluster."""

    change: str
    predicted: PredictionReply | None
    """Null: the model does not fit."""
    waits_for: str | None
    """What is missing then."""


class WhatIfReply(ResponseModel):
    """The answer to ``GET /v1/cluster/what-if``."""

    object: Literal["what_if"]
    devices: list[str]
    """Whose figures are known."""
    predicted: PredictionReply | None
    """Of the plan that is in force."""
    what_if: PlannedChangeReply | None
    """Null: no change was asked for."""


@runtime_checkable
class Plannable(Protocol):
    """A `HostedModel` whose layers are planned."""

    def find_layers(self) -> LayerPlan:
        """Return the plan that is in force."""

    def plan_change(self, change: str) -> LayerPlan:
        """Return what would be planned if the cluster changed so; it takes seconds, on any thread.

        Raises:
            UsageError: see `change_cluster`.
        """


def make_what_if_router(models: ServedModels) -> APIRouter:
    """Return the route."""
    router, lock = APIRouter(), asyncio.Lock()

    @router.get("/v1/cluster/what-if", responses=describe_answer(WhatIfReply) | describe_errors(400, 401, 403, 404))
    @needs_role("admin")
    async def predict(change: Change = None) -> Response:
        """Predict the speed with nodes added or one taken away, without starting anything."""
        host = _find_host(models)
        now = host.find_layers()
        async with lock:  # a search takes a core
            found = None if change is None else _show(change, await asyncio.to_thread(_plan, host, change))
        predicted = show_prediction(now.estimate) if now.pipelines else None
        return respond_with(WhatIfReply("what_if", list(DEVICES), predicted, found))

    return router


def _find_host(models: ServedModels) -> Plannable:
    """Return the first model with planned layers; raises UnknownName without one."""
    for model in models.loaded:
        hosted: object = model.hosted
        if isinstance(hosted, Plannable):
            return hosted
    hint = "they are on one that `parallax run` has started, with a model that is loaded or being loaded"
    raise UnknownName("layers are not planned on this server", hint)


def _plan(host: Plannable, change: str) -> LayerPlan:
    try:
        return host.plan_change(change)
    except UsageError as error:
        raise InvalidRequest(error.message, "change", error.hint) from error


def _show(change: str, plan: LayerPlan) -> PlannedChangeReply:
    predicted = show_prediction(plan.estimate) if plan.pipelines else None
    return PlannedChangeReply(change, predicted, plan.waits_for or None)
