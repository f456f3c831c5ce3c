"""The model that a server serves, with everything its routes need."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.base.errors import BackendFailed, InvalidRequest
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Admitting, Engine, Pooling, Request, Resumable
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.status import Described
from parallax_core.models.output_parser import OutputParser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.server.access_log import REQUEST_ID
from parallax_core.server.body_messages import (
    BodyReading,
    BodyRequest,
    DirectAnswer,
    MoreNeeded,
    ParsedBody,
    ParserTraits,
    RefusedBody,
)
from parallax_core.server.cache_salt import CacheSalts
from parallax_core.server.capabilities import can_reason, list_capabilities, takes_effort
from parallax_core.server.field_names import name_api_field
from parallax_core.server.json_pieces import cut
from parallax_core.server.json_response import respond
from parallax_core.server.logprobs import TokenWriter
from parallax_core.server.meters import Meters, RequestMeters
from parallax_core.server.options import ServerOptions
from parallax_core.server.quota import Quota
from parallax_core.server.reasoning_limit import ReasoningLimit
from parallax_core.server.response import ResponseFlow, while_connected
from parallax_core.server.response_models import ModelCapability, ModelReply, ModelStatus
from parallax_core.server.running import RunningFlows
from parallax_core.server.served_adapters import ServedAdapters, find_key
from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT

Supply = Callable[[bytes], Awaitable[bytes]]
SOME_REQUEST = Request(id=RequestId(""), prompt=(0,), max_tokens=None, sampling=Sampling())


@dataclass(frozen=True)
class Service:
    """The engine, tokenizer, reader, metrics and limits for the model of a server."""

    model_id: str
    engine: Engine
    text: ModelTokenizer
    reader: BodyReading
    meters: Meters = field(default_factory=Meters)
    created: int = field(default_factory=lambda: int(time.time()))
    """The start of the service, in seconds since 1970."""
    find_max_length: Callable[[], int] = lambda: 0
    """Returns the longest sequence that can be served, in tokens; 0 while that is not known."""
    quota: Quota = field(default_factory=Quota)
    """The limits of each client."""
    backlog: UnreadOutput = field(default_factory=UnreadOutput)
    """Bounds the output that clients have not read; shared with the engine."""
    parser: OutputParser | None = None
    """The parser of the model's outputs; None: its text is not parsed."""
    running: RunningFlows = field(default_factory=RunningFlows)
    """The answers that are being generated."""
    options: ServerOptions = field(default_factory=ServerOptions)
    """The options of the server."""
    adapters: ServedAdapters = field(default_factory=dict)
    """The LoRA adapters of the server, by name; those of other models too."""

    async def read(
        self, kind: str, http: fastapi.Request, extra: bytes = b"", supply: Supply | None = None
    ) -> ParsedBody:
        """Read the body of a request for an engine.

        Args:
            kind: the kind of the body.
            http: the request.
            extra: what else the reader of this kind has to know.
            supply: returns the ``extra`` for a second reading, for what the first has asked by `MoreNeeded`.

        Raises:
            Unavailable: if the engine would not accept a request now; this is checked before the body is read.
            ParallaxError: if the body is refused.
            ClientGone: if the client disconnected.
        """
        if isinstance(self.engine, Admitting):
            self.engine.check_room()
        content = await self._read(kind, http, extra, supply)
        assert isinstance(content, ParsedBody)
        return content

    async def write(self, kind: str, http: fastapi.Request, extra: bytes = b"") -> Response:
        """Return the response to a body that needs no engine; raises what `read` raises, except Unavailable."""
        content = await self._read(kind, http, extra)
        assert isinstance(content, DirectAnswer)
        return respond(cut(content.body))

    async def submit(self, reading: ParsedBody, name: str, http: fastapi.Request) -> ResponseFlow:
        """Submit the requests of a body, within the client's limits.

        Raises:
            InvalidRequest: if they can never be served, or exceed the client's limits.
            Unavailable: if they cannot be served now, or the client has to wait.
        """
        try:
            flow = await self._submit(self._complete(reading, http), name, http)
        except InvalidRequest as error:
            if error.param == "salt" and not reading.request.salt:
                message = "this model's engine cannot keep the cached prompts of API keys apart"
                raise BackendFailed(message, "its operator can start the server with --set share_cache=true") from error
            raise name_api_field(error, reading.form) from error
        if reading.request.timeout_s is None and self.options.default_timeout_s is not None:
            flow.default_end = find_arrival(http) + self.options.default_timeout_s
        return flow

    def can_resume(self, reading: ParsedBody) -> bool:
        """Return whether `resume` can go on with an answer; not with several, or a limit on the reasoning."""
        is_plain = reading.is_single and reading.request.n == 1 and not reading.form.reasoning_end
        return is_plain and can_resume(self.engine, reading.request)

    async def resume(self, reading: ParsedBody, name: str, delivered: tuple[int, ...]) -> ResponseFlow:
        """Submit a request again, whose answer a server before this one has begun, to go on after ``delivered``.

        It counts towards no limit of its client, who has waited long enough.

        Args:
            reading: `ResponseFlow.reading` of the answer; `can_resume` said that it can go on.
            name: the id of the request.
            delivered: the tokens that its client has.

        Raises:
            InvalidRequest: if the model that is served now cannot go on with it.
            Unavailable: if it cannot be served now.
        """
        answers = (delivered,) if delivered else ()
        requests = [replace(each, delivered=answers) for each in reading.make_requests(name)]
        arrived = time.monotonic()

        def begin() -> RequestMeters:
            return self.meters.begin(arrived, "", lambda: None)

        flow = await ResponseFlow.submit(self.engine, requests, begin, self.backlog)
        flow.form, flow.reading = reading.form, reading
        self.running.add(flow, reading.request.client, {name})
        return flow

    async def _submit(self, reading: ParsedBody, name: str, http: fastapi.Request) -> ResponseFlow:
        arrived, parent = find_arrival(http), http.headers.get("traceparent", "")
        reading, shares = self.quota.claim(reading, self.find_max_length(), http)
        requests, left = reading.make_requests(name, time.monotonic() - arrived), iter(shares)

        def begin() -> RequestMeters:
            return self.meters.begin(arrived, parent, next(left).release)

        try:
            flow = await ResponseFlow.submit(self._limit_reasoning(reading), requests, begin, self.backlog)
        except BaseException:
            for share in shares:
                share.release()
            raise

        flow.form, flow.reading = reading.form, reading
        self.running.add(flow, self.quota.identify(http), {name, http.headers.get(REQUEST_ID, name)})
        return flow

    def _complete(self, reading: ParsedBody, http: fastapi.Request) -> ParsedBody:
        """Return the request completed by its context: adapter, client, owner of cache and pins, and timeout.

        A program that submits requests of its own clients to an engine does the same.
        """
        request, client = reading.request, self.quota.identify(http)
        pin = request.pin and replace(request.pin, owner=client)
        salt = self.salts.derive(http.scope, request.salt)
        timeout_s = self.options.default_timeout_s if request.timeout_s is None else request.timeout_s
        adapter = find_key(self.adapters, reading.form.model, (self.model_id, *self.names))
        request = replace(request, client=client, pin=pin, salt=salt, timeout_s=timeout_s, adapter=adapter)
        return msgspec.structs.replace(reading, request=request)

    def _limit_reasoning(self, reading: ParsedBody) -> Engine:
        """Return the engine, with a limit on the reasoning if the request has one.

        Raises:
            InvalidRequest: if the model reasons, and the engine cannot continue answers.
        """
        if not reading.form.reasoning_end or self.parser is None:
            return self.engine
        if not can_resume(self.engine, reading.request):
            if not can_reason(self.text, self._traits):
                return self.engine
            message = "a limit on reasoning is not available: this model's engine cannot continue an answer"
            raise InvalidRequest(message, "max_reasoning_tokens", "leave it out, or serve with another backend")
        return ReasoningLimit(self.engine, self.parser, reading.form, self.text.decode)

    async def _read(
        self, kind: str, http: fastapi.Request, extra: bytes, supply: Supply | None = None
    ) -> ParsedBody | DirectAnswer:
        if not is_json(http.headers.get("content-type", "")):
            message = "the Content-Type of the body is not application/json"
            raise InvalidRequest(message)
        ask = BodyRequest(
            kind=kind,
            body=await http.body(),
            client=self.quota.identify(http),
            is_lenient=IGNORED.get() is not None,
            max_length=self.find_max_length(),
            names=self._list_names(),
            extra=extra,
            reader=http.app.state.rewriters.get(http.scope["path"], ""),
        )
        answer = await while_connected(http, self.reader.read(ask))
        if isinstance(answer.content, MoreNeeded):
            assert supply is not None, "what reads this kind of body never asks for more"
            ask = msgspec.structs.replace(ask, extra=await supply(answer.content.asked))
            answer = await while_connected(http, self.reader.read(ask))
        LEFT_OUT.get({}).update(dict.fromkeys(answer.ignored))
        if isinstance(answer.content, RefusedBody):
            raise answer.content.as_error()
        assert not isinstance(answer.content, MoreNeeded)
        return answer.content

    def _list_names(self) -> tuple[str, ...]:
        """Return what a request may call it, or one of its adapters; the first is its name in answers without one."""
        adapters = (each.name for each in self.adapters.values() if each.model_id == self.model_id)
        return (*self.names, self.model_id, *adapters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What clients may call it besides its id."""
        return tuple(name for name, model in self.options.aliases.items() if model == self.model_id)

    @cached_property
    def salts(self) -> CacheSalts:
        """What keeps its clients apart in the prefix caches."""
        return CacheSalts(self.options)

    @cached_property
    def writer(self) -> TokenWriter:
        """The writer of the tokens of its answers."""
        return TokenWriter(self.text.vocabulary)

    def describe(self, status: ModelStatus) -> ModelReply:
        """Return the model in OpenAI's form, with its length, its capabilities and the defaults for sampling."""
        return ModelReply(
            id=self.model_id,
            root=self.model_id,
            created=self.created,
            status=status,
            max_model_len=self.find_max_length() or self.text.context_length or None,
            capabilities=self.capabilities,
            default_sampling_params={name: float(value) for name, value in self.text.defaults.describe().items()},
        )

    @property
    def capabilities(self) -> list[ModelCapability]:
        """What requests for the model may ask for."""
        statuses = self.engine.describe() if isinstance(self.engine, Described) else ()
        takes_grammars = all(status.takes_grammars for status in statuses) and self.reader.takes_grammars
        takes_grammars = takes_grammars and bool(self.text.stop_ids)
        poolings = set(get_args(Pooling)).intersection(*(status.poolings for status in statuses))
        return list_capabilities(self.text, self._traits, takes_grammars=takes_grammars, poolings=poolings)

    @property
    def limits_reasoning(self) -> bool:
        """Whether a limit on the reasoning is kept, as it is by a model that does not reason."""
        if not takes_effort(self.text, self._traits):
            return True
        return can_reason(self.text, self._traits) and can_resume(self.engine, SOME_REQUEST)

    @property
    def _traits(self) -> ParserTraits:
        traits = ParserTraits.of(self.parser.spec) if self.parser is not None else ParserTraits()
        return msgspec.structs.replace(traits, may_list_calls=self.options.lists_calls)


def find_arrival(http: fastapi.Request) -> float:
    """Return the time of a request's arrival by `time.monotonic`."""
    arrived: float = getattr(http.state, "arrived", None) or time.monotonic()
    return arrived


def is_json(content_type: str) -> bool:
    """Return whether a Content-Type is JSON: ``application/json``, or a type that ends with ``+json``."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def can_resume(engine: Engine, request: Request) -> bool:
    """Return whether an engine continues an answer to a request that has begun."""
    return isinstance(engine, Resumable) and engine.can_resume(request)
