"""The page in front of a server whose cluster is made up: a thousand nodes, or names and answers of an attacker.

The page, its files and their policy are those of `parallax-web`. What the API answers is made up, and of the documented
schemas.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import fastapi
import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from parallax_cluster.server.replies import ClusterReply, MemberReply
from parallax_observe.log_routes import LogReply
from parallax_observe.request_feed import RequestsReply
from parallax_operate.catalog_routes import CatalogReply, FoundReply
from parallax_web.page_files import make_router
from parallax_web.plugin import FOLDER, PATH

Json = dict[str, Any]
GB = 10**9
STAGES = 4
TEXT = "tokens of an answer, with **bold** words, `code` and a [link](https://example.org/x) now and then."
"""What an answer is made of, again and again."""
PARAGRAPH = 90
"""The words of one of its paragraphs."""


def make_word(number: int) -> str:
    """Return a word of an answer."""
    words = TEXT.split()
    return words[number % len(words)] + ("\n\n" if number % PARAGRAPH == PARAGRAPH - 1 else " ")


def make_node(number: int, name: str = "", **changed: Any) -> Json:
    """Return a node that has joined, as ``GET /v1/cluster`` shows it."""
    name = name or f"machine-{number}/{1000 + number}"
    profile = {
        "device": "made up",
        "memory": 16 * GB,
        "total_memory": 24 * GB,
        "flops": 1e13,
        "bandwidth": 1e11,
        "flops_efficiency": 0.5,
        "bandwidth_efficiency": 0.5,
        "step_seconds": 0.001,
        "layer_seconds": 0.0001,
        "expert_layer_seconds": 0.0001,
        "forms": [],
        "measured": True,
        "disk_free": 10**12,
        "disk_bandwidth": 1e9,
        "links": [
            {"peer": f"machine-{peer}/{1000 + peer}", "round_trip_seconds": 0.01, "bandwidth": 1e8, "relay": None}
            for peer in range(number + 1, number + 5)
        ],
    }
    made = {
        "node": name,
        "host": name.split("/")[0],
        "pid": 1000 + number,
        "address": "127.0.0.1:1",
        "backends": ["made"],
        "spare": None,
        "profile": profile,
        "unreached": [],
        "state": "serving" if number < STAGES else "idle",
        "model": "made",
        "replica": 0,
        "layers": [number, number + 1],
        "idle_reason": None,
        "slowdown": 1.0,
        "labels": {},
        "versions": {},
        "expected_versions": {},
        "drained": False,
    }
    return msgspec.to_builtins(msgspec.convert(made | changed, MemberReply))  # type: ignore[no-any-return]


def make_stage(number: int, node: str) -> Json:
    """Return a stage of the only replica."""
    return {
        "stage": number,
        "node": node,
        "host": node,
        "pid": 1,
        "backend": "made",
        "layers": [number, number + 1],
        "device": "made up",
        "dtype": "bfloat16",
        "weight_bytes": GB,
        "pools": [{"kind": "full", "used": number, "total": 100}],
        "steps": 1,
        "tokens": 1,
        "queued": 0,
        "restarts": 0,
        "relay": None,
        "weights": "",
        "step_seconds": {"mean": 0.01, "median": 0.01 * (number + 1)},
    }


def make_cluster(nodes: Sequence[Json], model: str = "made") -> Json:
    """Return a cluster in which the first nodes have stages."""
    made = {
        "model": model,
        "models": [{"id": model, "state": "ready", "error": None}],
        "status": "ready",
        "reason": "",
        "replicas": [
            {
                "model": model,
                "rank": 0,
                "status": "ready",
                "reason": "",
                "drained": False,
                "requests": 1,
                "running": 1,
                "waiting": 0,
                "pending_tokens": 5,
                "losses": 0,
                "hop_seconds": 0.01,
                "limits": None,
                "stages": [make_stage(number, node["node"]) for number, node in enumerate(nodes[:STAGES])],
            }
        ],
        "waiting": [],
        "nodes": list(nodes),
        "plan": None,
    }
    return msgspec.to_builtins(msgspec.convert(made, ClusterReply))  # type: ignore[no-any-return]


@dataclass
class MadeServer:
    """A server of the page; a context manager that serves while entered."""

    cluster: Json
    model: str = "made"
    rate: float = 100.0
    """Tokens a second of its answers."""
    most_tokens: int = 1000
    answers: Callable[[int], str] = make_word
    """Returns the text of a token of an answer by its number."""
    lines: list[Json] = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)
    catalog: list[str] = field(default_factory=list)
    """The names of stored and of found models."""

    def __enter__(self) -> Self:
        self._events: list[asyncio.Queue[tuple[str, Json]]] = []
        app = fastapi.FastAPI(openapi_url=None)
        self._add_routes(app)
        app.include_router(make_router(PATH, FOLDER))
        config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < until
            time.sleep(0.01)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self._port}{PATH}/"

    def tell(self, name: str, data: Json) -> None:
        """Send an event of the cluster to every page; a changed node is another one from then on."""
        if name == "node_changed":
            nodes = self.cluster["nodes"]
            nodes[next(place for place, each in enumerate(nodes) if each["node"] == data["node"])] = data
        for queue in self._events:
            queue.put_nowait((name, data))  # an unbounded queue, whose reader looks by itself

    def _add_routes(self, app: fastapi.FastAPI) -> None:
        found = {"name": "", "downloads": 1, "parameters": 10**9, "is_gated": True, "is_known": False}
        stored = [{"name": name, "size_bytes": GB, "total_bytes": None} for name in self.catalog]
        shown: dict[str, Json] = {
            "/session": {"role": None, "expires_in": 0, "read_only": False},
            "/version": {"version": "0"},
            "/v1/models": {"data": [{"id": self.model, "max_model_len": 4096}]},
            "/v1/cluster": self.cluster,
            "/v1/cluster/models": {
                "data": [{"id": self.model, "names": [], "state": "ready", "error": None, "requests": 0, "nodes": []}],
                "change": None,
                "earlier": [],
            },
            "/v1/log": _check(LogReply, object="list", nodes=[], last=len(self.lines), data=self.lines),
            "/v1/settings": {"file": None, "data": []},
            "/v1/keys": {"file": None, "has_own_key": False, "limits": {}, "data": []},
            "/v1/catalog": _check(
                CatalogReply, object="catalog", memory_free=GB, disk_free=GB, searched=["hf"], aliases={}, data=stored
            ),
            "/v1/catalog/search": _check(
                FoundReply, object="list", data=[found | {"name": name} for name in self.catalog]
            ),
            "/v1/catalog/formats": {"object": "list", "data": []},
        }
        for path, content in shown.items():
            app.add_api_route(path, _answer(content), methods=["GET"])
        told = _check(RequestsReply, object="list", now=time.time(), data=self.requests)
        app.add_api_route("/v1/cluster/events", self._follow_cluster, methods=["GET"])
        app.add_api_route("/v1/requests/events", lambda: _stream(_once("requests", told)), methods=["GET"])
        app.add_api_route("/v1/responses", self._respond, methods=["POST"])

    async def _follow_cluster(self) -> Response:
        async def list_events() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
            self._events.append(queue)
            yield write_event("cluster", self.cluster)
            while True:
                while not queue.empty():
                    yield write_event(*queue.get_nowait())
                await asyncio.sleep(0.01)

        return _stream(list_events())

    async def _respond(self, http: Request) -> Response:
        del http

        async def list_events() -> AsyncIterator[bytes]:
            reply = {"id": "resp_1", "status": "in_progress"}
            yield write_event("e", {"type": "response.created", "sequence_number": 0, "response": reply})
            began = time.monotonic()
            for number in range(self.most_tokens):
                await asyncio.sleep(max(0.0, began + number / self.rate - time.monotonic()))
                delta = {"type": "response.output_text.delta", "delta": self.answers(number)}
                yield write_event("e", delta | {"sequence_number": number + 1})
            ended = reply | {"status": "completed", "usage": {"input_tokens": 1, "output_tokens": self.most_tokens}}
            last = {"type": "response.completed", "sequence_number": self.most_tokens + 1, "response": ended}
            yield write_event("e", last)

        return _stream(list_events())


def write_event(name: str, data: Json) -> bytes:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _check(schema: type[Any], **made: Any) -> Json:
    """Return an answer if it is of its schema."""
    return msgspec.to_builtins(msgspec.convert(made, schema))  # type: ignore[no-any-return]


def _answer(content: Json) -> Callable[[], Response]:
    return lambda: JSONResponse(content)


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


async def _once(name: str, data: Json) -> AsyncIterator[bytes]:
    yield write_event(name, data)
    await asyncio.sleep(3600)
