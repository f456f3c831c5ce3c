"""The routes of responses that are kept: retrieve, cancel and delete them, and list their input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal

import fastapi
from fastapi import Depends, Query
from fastapi.responses import Response

from parallax_api_responses.body_models import Included
from parallax_api_responses.input_list import list_kept_input
from parallax_api_responses.keeper import ResponseKeeper
from parallax_api_responses.replies import DeletedReply, InputListReply, ResponsesReply
from parallax_api_responses.route import ANSWERS
from parallax_api_responses.store import StoredResponse
from parallax_core.api import InvalidRequest, UnknownName, needs_role
from parallax_core.api.bodies import JsonObject, cut, to_json
from parallax_core.api.dialect import (
    ServedModels,
    SseResponse,
    WholeResponse,
    describe_answer,
    describe_errors,
    respond,
    respond_with,
)

PATH = "/v1/responses/{response_id}"
ERRORS = describe_errors(400, 401, 403, 404, 429)

Identify = Callable[[fastapi.Request], bytes]
"""Returns the id of the client of a request."""
IncludedQuery = Annotated[list[Included] | None, Query()]
IncludedQueries = Annotated[list[Included] | None, Query(alias="include[]")]
"""The same, as the official clients have it."""


def make_router(models: ServedModels, keeper: ResponseKeeper) -> fastapi.APIRouter:
    """Return the routes of the responses of ``keeper``; ``models`` knows whose they are."""
    router, identify = fastapi.APIRouter(), models.quota.identify
    _add_retrieve(router, keeper, identify)
    _add_ends(router, keeper, identify)
    _add_input(router, keeper, identify)
    return router


async def check_included(include: IncludedQuery = None, includes: IncludedQueries = None) -> None:
    """Check what a query asks to include: without effect, since that is decided when a response is made."""
    del include, includes


def _add_retrieve(router: fastapi.APIRouter, keeper: ResponseKeeper, identify: Identify) -> None:
    @router.get(
        PATH,
        responses=ANSWERS | ERRORS,
        dependencies=[Depends(check_included)],
    )
    async def retrieve_response(
        http: fastapi.Request,
        response_id: str,
        *,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        include_obfuscation: bool = False,
    ) -> Response:
        """Return a response, or its events from the one after ``starting_after`` on."""
        if include_obfuscation:
            raise InvalidRequest("'include_obfuscation' is not supported: leave it out", "include_obfuscation")
        if starting_after is not None and not stream:
            message = "'starting_after' is only for requests with 'stream'"
            raise InvalidRequest(message, "starting_after")
        owner, first = identify(http), 0 if starting_after is None else starting_after + 1
        if run := keeper.find_run(owner, response_id):
            return SseResponse(run.follow(first)) if stream else respond(cut(to_json(run.writer.reply)))
        stored = await _find(keeper, owner, response_id)
        if not stream:
            return WholeResponse(respond(cut(stored.body)), keeper.begin_reading(owner, len(stored.body)))
        _check_events(stored)
        reading = keeper.begin_reading(owner)
        return SseResponse(reading.read(keeper.read_events(owner, response_id, first)), reading)


def _add_ends(router: fastapi.APIRouter, keeper: ResponseKeeper, identify: Identify) -> None:
    @router.delete(PATH, responses=describe_answer(DeletedReply) | ERRORS)
    @needs_role("user")
    async def delete_response(http: fastapi.Request, response_id: str) -> Response:
        """Delete a response; one that runs in the background ends."""
        if not await keeper.delete(identify(http), response_id):
            raise _unknown(response_id)
        return respond_with(DeletedReply(response_id))

    @router.post(f"{PATH}/cancel", responses=describe_answer(ResponsesReply) | ERRORS)
    @needs_role("user")
    async def cancel_response(http: fastapi.Request, response_id: str) -> Response:
        """End a response that runs in the background; one that has ended stays as it is."""
        owner = identify(http)
        if run := keeper.find_run(owner, response_id):
            await run.cancel()
            return respond(cut(to_json(run.writer.reply)))
        stored = await _find(keeper, owner, response_id)
        if not stored.has_events:
            message = "only responses in the background can be cancelled"
            raise InvalidRequest(message, "response_id", "close the connection of others to end them")
        return respond(cut(stored.body))


def _add_input(router: fastapi.APIRouter, keeper: ResponseKeeper, identify: Identify) -> None:
    @router.get(
        f"{PATH}/input_items",
        responses=describe_answer(InputListReply) | ERRORS,
        dependencies=[Depends(check_included)],
    )
    async def list_input_parts(
        http: fastapi.Request,
        response_id: str,
        *,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """List the parts of the input of a response, without those of the responses that it continues."""
        owner = identify(http)
        run = keeper.find_run(owner, response_id)
        data = run.writer.plan.input if run else (await _find(keeper, owner, response_id)).input
        parts = await asyncio.to_thread(list_kept_input, response_id, data)
        page = _make_page(parts if order == "asc" else parts[::-1], limit, after)
        return respond(cut(to_json(page)))


async def _find(keeper: ResponseKeeper, owner: bytes, name: str) -> StoredResponse:
    stored = await keeper.find(owner, name)
    if stored is None:
        raise _unknown(name)
    return stored


def _unknown(name: str) -> UnknownName:
    return UnknownName(f"no response of yours has the id '{name[:100]}'", "it may have been deleted, or dropped by age")


def _check_events(stored: StoredResponse) -> None:
    """Raise InvalidRequest if a response did not run in the background."""
    if not stored.has_events:
        message = "the events of a response are kept only if it is made with 'background': true"
        raise InvalidRequest(message, "stream", "leave 'stream' out")


def _make_page(parts: list[JsonObject], limit: int, after: str | None) -> InputListReply:
    """Return a page of a list in OpenAI's form.

    Raises:
        InvalidRequest: if no part has the id ``after``.
    """
    start = 0
    if after is not None:
        places = [at for at, part in enumerate(parts) if part["id"] == after]
        if not places:
            message = "'after' is the id of no part of this input"
            raise InvalidRequest(message, "after")
        start = places[0] + 1
    page = parts[start : start + limit]
    first, last = (str(page[at]["id"]) if page else "" for at in (0, -1))
    return InputListReply(data=page, first_id=first, last_id=last, has_more=start + limit < len(parts))
