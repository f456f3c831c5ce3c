"""``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import fastapi
from fastapi.responses import JSONResponse, Response

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Delta, Reason, TokenLogprob
from parallax_core.server.description import describe_body, describe_errors, describe_events
from parallax_core.server.flow import EventStream, Flow, while_connected
from parallax_core.server.logprobs import Shape, chat_logprobs
from parallax_core.server.reading import Form, Reading
from parallax_core.server.reply import ChatChunk, ChatReply
from parallax_core.server.schema import ChatRequest
from parallax_core.server.served import Served


@dataclass(frozen=True, slots=True)
class Chat:
    """One request, and what all chunks of its answer have in common."""

    served: Served
    form: Form
    flow: Flow
    id: str
    created: int

    async def collect(self) -> JSONResponse:
        """Return the whole answer."""
        answers = [Answer() for _ in range(self.form.num_answers)]
        async for _, delta in self.flow.read():
            answers[delta.index].add(delta)
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return JSONResponse({**self._common("chat.completion"), "choices": choices, "usage": self.flow.usage()})

    async def stream(self) -> AsyncIterator[Shape]:
        """Yield the chunks of the answer; the role comes with the first token, so that clients can time that."""
        to_open = set(range(self.form.num_answers))
        async for _, delta in self.flow.read():
            role = {"role": "assistant"} if delta.index in to_open else {}
            to_open.discard(delta.index)
            if role or delta.text or self._find_logprobs(delta):
                yield self._chunk(delta.index, {**role, "content": delta.text}, delta)
            if delta.ended:
                yield self._chunk(delta.index, {}, reason=delta.ended)
        if self.form.includes_usage:
            yield {**self._common("chat.completion.chunk"), "choices": [], "usage": self.flow.usage()}

    def _choice(self, index: int, answer: Answer) -> Shape:
        message = {"role": "assistant", "content": "".join(answer.texts), "refusal": None}
        logprobs = self._describe(answer.logprobs) if self.form.logprobs is not None else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.reason}

    def _chunk(self, index: int, delta: Shape, source: Delta | None = None, reason: Reason | None = None) -> Shape:
        entries = self._find_logprobs(source) if source else ()
        logprobs = self._describe(entries) if entries else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._common("chat.completion.chunk"), "choices": [choice]}

    def _find_logprobs(self, delta: Delta) -> tuple[TokenLogprob, ...]:
        return delta.logprobs if self.form.logprobs is not None else ()

    def _describe(self, entries: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> Shape:
        return chat_logprobs(self.served.text.vocabulary, entries)

    def _common(self, kind: str) -> Shape:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.form.model}


@dataclass(slots=True)
class Answer:
    """One answer, as it is put together."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: Reason | None = None

    def add(self, delta: Delta) -> None:
        """Take what comes next."""
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs
        self.reason = delta.ended or self.reason


async def _submit(served: Served, reading: Reading, name: str, http: fastapi.Request) -> Flow:
    try:
        return await served.submit(reading, name, http)
    except InvalidRequest as error:
        if error.param == "max_tokens":
            raise InvalidRequest(error.message, reading.form.length_field, error.hint) from error
        raise


def make_router(served: Served) -> fastapi.APIRouter:
    """Return the route for ``served``."""
    router = fastapi.APIRouter()

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/chat/completions",
        response_model=ChatReply,
        responses={**describe_events(ChatChunk), **errors},
        openapi_extra=describe_body(ChatRequest),
    )
    async def create_chat_completion(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        reading, name = await served.read("chat", http), f"chatcmpl-{secrets.token_hex(12)}"
        flow = await _submit(served, reading, name, http)
        chat = Chat(served, reading.form, flow, name, int(time.time()))
        if reading.form.streams:
            return EventStream(chat.stream(), flow)
        try:
            return await while_connected(http, chat.collect())
        finally:
            flow.close()

    return router
