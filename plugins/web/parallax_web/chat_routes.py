"""The routes of conversations that a server keeps: list, read, write and delete one's own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import fastapi
from fastapi.responses import Response

from parallax_core.api import Dialect, InvalidRequest, UnknownName, needs_role
from parallax_core.api.dialect import (
    ResponseModel,
    ServedModels,
    ServerOptions,
    describe_answer,
    describe_body,
    describe_errors,
    respond_with,
)
from parallax_web import plugin
from parallax_web.chat_body import ChatBody, write
from parallax_web.chat_store import ChatHeading, ChatReply, ChatStore

CALLER = re.compile(rb"caller:\d+:(?:key ([0-9a-f]{64})|([0-9a-f]{64})|(.*))", re.DOTALL)
"""Matches the id of a client that an authenticator knows: a session by a key, one by a link, or another plugin's."""
ERRORS = describe_errors(401, 403)
Name = Annotated[str, fastapi.Path(pattern=r"^[\w-]{1,64}$", description="An id that the client has made up.")]


class ChatsReply(ResponseModel):
    """The answer to ``GET /v1/chats``."""

    object: Literal["list"]
    data: list[ChatHeading]
    """The latest first."""


class DeletedChatsReply(ResponseModel):
    """The answer to deletions."""

    deleted: int
    """How many conversations are gone."""


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes, if a file is set.

    Raises:
        ParallaxError: if it cannot be opened.
    """
    del options
    if not plugin.chosen.chats:
        return Dialect(routers=())
    store = ChatStore(Path(plugin.chosen.chats).expanduser(), round(plugin.chosen.chats_size * 1e6))

    async def close() -> None:
        await asyncio.to_thread(store.close)

    return Dialect(routers=(make_router(store, models.quota.identify),), close=close)


def find_owner(client: bytes) -> bytes:
    """Return whose conversations a client has: those of its key, also in a session that the key has opened.

    Raises:
        InvalidRequest: if it has none, and its session ends before long.
    """
    if (found := CALLER.fullmatch(client)) is None:
        return client
    key, link, other = found.groups()
    if link:
        message = "conversations are kept for API keys, and this session was opened by a link"
        raise InvalidRequest(message, hint="sign in by an API key")
    return b"key:" + bytes.fromhex(key.decode()) if key else b"caller:" + other


def make_router(store: ChatStore, identify: Callable[[fastapi.Request], bytes]) -> fastapi.APIRouter:
    """Return the routes; ``identify`` tells who sent a request."""
    router = fastapi.APIRouter()

    @router.get("/v1/chats", responses=describe_answer(ChatsReply) | describe_errors(400) | ERRORS)
    @needs_role("user")
    async def list_chats(http: fastapi.Request) -> Response:
        """List the client's conversations, the latest first."""
        found = await asyncio.to_thread(store.list, find_owner(identify(http)))
        return respond_with(ChatsReply("list", found))

    @router.delete("/v1/chats", responses=describe_answer(DeletedChatsReply) | describe_errors(400) | ERRORS)
    @needs_role("user")
    async def delete_chats(http: fastapi.Request) -> Response:
        """Delete all of the client's conversations."""
        return respond_with(DeletedChatsReply(await asyncio.to_thread(store.delete, find_owner(identify(http)))))

    @router.get("/v1/chats/{name}", responses=describe_answer(ChatReply) | describe_errors(400, 404) | ERRORS)
    @needs_role("user")
    async def read_chat(http: fastapi.Request, name: Name) -> Response:
        """Return a conversation of the client."""
        if (found := await asyncio.to_thread(store.read, find_owner(identify(http)), name)) is None:
            raise UnknownName(f"there is no conversation {name!r}")
        return respond_with(found)

    @router.put(
        "/v1/chats/{name}",
        responses=describe_answer(ChatHeading) | describe_errors(400, 404, 408, 409, 413) | ERRORS,
        openapi_extra=describe_body(ChatBody),
    )
    @needs_role("user")
    async def write_chat(http: fastapi.Request, name: Name) -> Response:
        """Keep a conversation; a 409 if another version is kept, or the client has no room."""
        owner, data = find_owner(identify(http)), await http.body()
        return respond_with(await asyncio.to_thread(write, store, owner, name, data))

    @router.delete(
        "/v1/chats/{name}", responses=describe_answer(DeletedChatsReply) | describe_errors(400, 404) | ERRORS
    )
    @needs_role("user")
    async def delete_chat(http: fastapi.Request, name: Name) -> Response:
        """Delete a conversation of the client."""
        if not (deleted := await asyncio.to_thread(store.delete, find_owner(identify(http)), name)):
            raise UnknownName(f"there is no conversation {name!r}")
        return respond_with(DeletedChatsReply(deleted))

    return router
