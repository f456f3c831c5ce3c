"""The routes of Ollama's API, by the server's own: keys, limits and models are its."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from parallax_core.api import ForwardedAnswer, HttpSurface, InvalidRequest, Ref, needs_role
from parallax_server_ollama.asked import Asked, name_exactly, name_model
from parallax_server_ollama.replies import BrokenStream, Embeddings, Reply, name_error, write_lines, write_time

Json = dict[str, Any]
T = TypeVar("T")

VERSION = "0.12.0"
"""The release of Ollama with this API; clients compare it with their needs."""
CAPABILITIES = {"chat": "completion", "tools": "tools", "reasoning": "thinking", "embeddings": "embedding"}
"""What the server says of a model, as Ollama calls it."""
FAR = "0001-01-01T00:00:00Z"
"""Ollama's time for never."""
OK, MISSING, BAD, FAILED = 200, 404, 400, 500
Reader = Ref[Callable[[bytes], Asked]]
CHAT: Reader = Ref("parallax_server_ollama.translate:read_chat")
GENERATE: Reader = Ref("parallax_server_ollama.translate:read_generate")
EMBED: Reader = Ref("parallax_server_ollama.translate:read_embed")
SHOW: Reader = Ref("parallax_server_ollama.translate:read_show")
"""What reads the bodies, in processes of their own: a large one would hold up all streams here."""


class Refusal(Exception):
    """The server has refused a request."""

    def __init__(self, status: int, content: Json) -> None:
        super().__init__(content)
        self.response = JSONResponse(content, status)


class LinesResponse(StreamingResponse):
    """Sends the lines of a stream, and ends the answer however the response ends."""

    def __init__(self, answer: ForwardedAnswer, reply: Reply) -> None:
        super().__init__(self._list(answer, reply), media_type="application/x-ndjson")
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 -- as ASGI has them
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.close()

    @staticmethod
    async def _list(answer: ForwardedAnswer, reply: Reply) -> AsyncIterator[bytes]:
        async with aclosing(write_lines(aiter(answer), reply)) as lines:  # type: ignore[type-var]
            async for line in lines:
                yield line


class Ollama:
    """Answers requests with the routes of a server."""

    def __init__(self, server: HttpSurface) -> None:
        self._server = server

    async def chat(self, http: Request) -> Response:
        """Answer ``POST /api/chat``."""
        return await self._answer(http, CHAT, is_chat=True)

    async def generate(self, http: Request) -> Response:
        """Answer ``POST /api/generate``."""
        return await self._answer(http, GENERATE, is_chat=False)

    async def embed(self, http: Request) -> Response:
        """Answer ``POST /api/embed``."""
        began, asked = time.monotonic(), await self._server.read(http, EMBED, Asked)
        model = await self.find_model(http, asked.model)
        _check_context(asked, model["max_model_len"] or 0)
        found = await self._ask(http, asked.path, _choose_body(asked, model), Embeddings)
        return Response(found.write(asked.model, time.monotonic() - began), media_type="application/json")

    async def show(self, http: Request) -> Response:
        """Answer ``POST /api/show``."""
        asked = await self._server.read(http, SHOW, Asked)
        model = await self.find_model(http, asked.model)
        able = [CAPABILITIES[name] for name in model["capabilities"] if name in CAPABILITIES]
        length = model["max_model_len"]
        facts = {"general.architecture": "parallax", **({"parallax.context_length": length} if length else {})}
        details = {"modelfile": "", "parameters": "", "template": "", "modified_at": write_time(model["created"])}
        return JSONResponse({**details, "details": _describe(), "model_info": facts, "capabilities": able})

    async def list_models(self, http: Request) -> Response:
        """Answer ``GET /api/tags``."""
        return JSONResponse({"models": [_write_model(each) for each in await self._list(http)]})

    async def list_running(self, http: Request) -> Response:
        """Answer ``GET /api/ps``: the model is always in memory."""
        rest = {"expires_at": FAR, "size_vram": 0}
        return JSONResponse({"models": [{**_write_model(each), **rest} for each in await self._list(http)]})

    async def find_model(self, http: Request, name: str) -> Json:
        """Return what the server says of a model.

        Raises:
            Refusal: if it has no such model.
        """
        models = {each["id"]: each for each in await self._list(http)}
        for each in (name, name_model(name)):
            if each in models:
                return models[each]
        raise Refusal(MISSING, {"error": f"model '{name}' not found"})

    async def _list(self, http: Request) -> list[Json]:
        found: list[Json] = (await self._ask(http, "/v1/models", None, dict))["data"]
        return found

    async def _ask(self, http: Request, path: str, body: bytes | None, kind: type[T]) -> T:
        """Return the whole answer of a route, as ``kind``.

        Raises:
            Refusal: if it refuses.
        """
        answer = await self._open(http, path, body)
        try:
            return await answer.read_json(kind)
        finally:
            await answer.close()

    async def _open(self, http: Request, path: str, body: bytes | None) -> ForwardedAnswer:
        answer = await self._server.forward(http, path, body)
        if answer.status != OK:
            try:
                raise Refusal(answer.status, name_error(await answer.read_json(dict)))
            finally:
                await answer.close()
        return answer

    async def _answer(self, http: Request, reader: Reader, *, is_chat: bool) -> Response:
        asked = await self._server.read(http, reader, Asked)
        model, reply = await self.find_model(http, asked.model), Reply(asked.model, is_chat=is_chat)
        if not asked.path:
            return _loaded(reply, asked)
        _check_context(asked, model["max_model_len"] or 0)
        body = _choose_body(asked, model)
        if asked.streams:
            return LinesResponse(await self._open(http, asked.path, body), reply)
        answer = await self._open(http, asked.path, body)
        try:
            return JSONResponse(await reply.read_whole(aiter(answer)))
        except BrokenStream as error:
            raise Refusal(FAILED, {"error": str(error)}) from None
        finally:
            await answer.close()


def _choose_body(asked: Asked, model: Json) -> bytes:
    """Return the body for the server, which knows the model by its name as asked for, or without the tag."""
    return name_exactly(asked) if model["id"] == asked.model else asked.body


def _check_context(asked: Asked, room: int) -> None:
    """Raise InvalidRequest if a client wants more tokens of context than the model has ``room`` for; 0: not known."""
    if room and asked.context > room:
        message = f"'options.num_ctx' is {asked.context}, and this model has room for {room} tokens here"
        raise InvalidRequest(message, "options.num_ctx", "leave it out, or send a smaller number")


def _loaded(reply: Reply, asked: Asked) -> Response:
    """Return the reply to a request without a prompt, by which clients load a model; here it is loaded already."""
    if asked.unloads:
        message = "'keep_alive': the model stays in memory as long as the server runs"
        raise InvalidRequest(message, "keep_alive", "end the server to free its memory")
    [*_, whole] = reply.end()
    return JSONResponse({**whole, "done_reason": "load"})


def _write_model(model: Json) -> Json:
    made = write_time(model["created"])
    return {
        "name": model["id"],
        "model": model["id"],
        "modified_at": made,
        "size": 0,
        "digest": "",
        "details": _describe(),
    }


def _describe() -> Json:
    """Return the details of a model, which the server does not tell."""
    texts = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    return {**texts, "families": []}


def _guard(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that writes its errors in Ollama's form."""

    @needs_role("user")
    async def guarded(http: Request) -> Response:
        try:
            return await answer(http)
        except Refusal as refusal:
            return refusal.response
        except InvalidRequest as error:
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            return JSONResponse({"error": text}, BAD)

    return guarded


async def _version() -> Json:
    return {"version": VERSION}


class GreetingRoute(APIRoute):
    """A route for all clients but browsers, which get the server's own page."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route answers a request, as all routes do."""
        is_browser = "text/html" in Headers(scope=scope).get("accept", "")
        return (Match.NONE, {}) if is_browser else super().matches(scope)


@needs_role(None)
async def _greet() -> Response:
    return PlainTextResponse("Ollama is running")


def make_router(server: HttpSurface) -> APIRouter:
    """Return the routes for ``server``."""
    server.write_errors("/api", lambda _, message: {"error": message})
    api, router = Ollama(server), APIRouter()
    posts = {"chat": api.chat, "generate": api.generate, "embed": api.embed, "show": api.show}
    gets = {"tags": api.list_models, "ps": api.list_running}
    for method, routes in (("POST", posts), ("GET", gets)):
        for name, answer in routes.items():
            router.add_api_route(f"/api/{name}", _guard(answer), methods=[method], name=f"ollama_{name}")
    router.add_api_route("/api/version", _version, methods=["GET"], name="ollama_version")
    router.add_api_route(
        "/", _greet, methods=["GET", "HEAD"], include_in_schema=False, route_class_override=GreetingRoute
    )
    return router
