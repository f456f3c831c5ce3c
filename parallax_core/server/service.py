"""What a server serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import fastapi
from fastapi.responses import Response

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Admitting, Engine
from parallax_core.contracts.status import NodeStatus
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.server.body_messages import (
    BodyKind,
    BodyReading,
    BodyRequest,
    DirectAnswer,
    ParsedBody,
    RefusedBody,
    UnknownModel,
)
from parallax_core.server.field_names import name_api_field
from parallax_core.server.json_pieces import cut, respond
from parallax_core.server.metrics import RequestMetrics, ServerMetrics
from parallax_core.server.quota import Quota
from parallax_core.server.response import ResponseFlow, while_connected
from parallax_core.server.unknown import IGNORED


@dataclass(frozen=True, slots=True)
class Service:
    """The model behind the API."""

    model_id: str
    engine: Engine
    text: ModelTokenizer
    reader: BodyReading
    server_metrics: ServerMetrics = field(default_factory=ServerMetrics)
    created: int = field(default_factory=lambda: int(time.time()))
    """When it was begun to be served, in seconds since 1970."""
    find_max_length: Callable[[], int] = lambda: 0
    """Returns the longest sequence that can be served, in tokens; 0 while that is not known."""
    quota: Quota = field(default_factory=Quota)
    """What one caller may ask."""
    backlog: UnreadOutput = field(default_factory=UnreadOutput)
    """What waits to be read by clients; that of the engine, too."""
    list_waiting: Callable[[], Sequence[NodeStatus]] = tuple
    """Returns the nodes that have joined and have nothing to do."""

    def __post_init__(self) -> None:
        self.server_metrics.watch(self.engine)

    async def read(self, kind: BodyKind, http: fastapi.Request) -> ParsedBody:
        """Return what a body asks an engine for.

        Raises:
            Unavailable: if no engine would take it now: that is asked before there is any work.
            ParallaxError: if it is refused.
            ClientGone: if nobody is there any more to be answered.
        """
        if isinstance(self.engine, Admitting):
            self.engine.check_room()
        content = await self._read(kind, http)
        assert isinstance(content, ParsedBody)
        return content

    async def write(self, kind: BodyKind, http: fastapi.Request) -> Response:
        """Return the answer to a body for which no engine is needed; raises what `read` does."""
        content = await self._read(kind, http)
        assert isinstance(content, DirectAnswer)
        return respond(cut(content.body))

    async def submit(self, reading: ParsedBody, name: str, http: fastapi.Request) -> ResponseFlow:
        """Submit what a body asks for, as far as its sender may.

        Raises:
            InvalidRequest: if it can never be served, or its sender may never ask it.
            Unavailable: if it cannot be served now, or its sender may not ask it now.
        """
        try:
            return await self._submit(reading, name, http)
        except InvalidRequest as error:
            raise name_api_field(error, reading.form) from error

    async def _submit(self, reading: ParsedBody, name: str, http: fastapi.Request) -> ResponseFlow:
        arrived, parent = find_arrival(http), http.headers.get("traceparent", "")
        reading, shares = self.quota.claim(reading, self.find_max_length(), http)
        requests, left = reading.make_requests(name, time.monotonic() - arrived), iter(shares)

        def begin() -> RequestMetrics:
            return self.server_metrics.begin(arrived, parent, next(left).release)

        try:
            return await ResponseFlow.submit(self.engine, requests, begin, self.backlog)
        except BaseException:
            for share in shares:
                share.release()
            raise

    async def _read(self, kind: BodyKind, http: fastapi.Request) -> ParsedBody | DirectAnswer:
        if not is_json(http.headers.get("content-type", "")):
            message = "the body is not sent as application/json"
            raise InvalidRequest(message)
        ignored = IGNORED.get()
        ask = BodyRequest(
            kind=kind, body=await http.body(), is_lenient=ignored is not None, max_length=self.find_max_length()
        )
        answer = await while_connected(http, self.reader.read(ask))
        if ignored is not None:
            ignored.update(dict.fromkeys(answer.ignored))
        if isinstance(answer.content, RefusedBody):
            raise answer.content.as_error()
        return answer.content

    def check_model(self, name: str) -> None:
        """Raise UnknownModel, unless ``name`` is the model served here."""
        if name != self.model_id:
            raise UnknownModel(f"the model '{name}' does not exist", f"this server has '{self.model_id}'")

    def describe(self) -> dict[str, object]:
        """Return the model in OpenAI's shape, and what holds where a request leaves sampling open."""
        model = {"id": self.model_id, "object": "model", "created": self.created, "owned_by": "parallax"}
        return {**model, "default_sampling_params": self.text.defaults.describe()}


def find_arrival(http: fastapi.Request) -> float:
    """Return when a request came, on the clock of `time.monotonic`."""
    arrived: float = getattr(http.state, "arrived", None) or time.monotonic()
    return arrived


def is_json(content_type: str) -> bool:
    """Whether a body is said to be JSON: ``application/json``, or what is based on it."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
