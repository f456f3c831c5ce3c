"""The route ``POST /v1/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import fastapi
from fastapi.responses import Response

from parallax_api_openai.completion_logprobs import Columns, CompletionLogprobs
from parallax_api_openai.completion_replies import CompletionChoice, CompletionReply, StopReason
from parallax_api_openai.completion_request import CompletionRequest
from parallax_api_openai.events import EventData, stream_chunks
from parallax_api_openai.fingerprint import make_fingerprint
from parallax_api_openai.usage import read_note, write_usage
from parallax_core.api import Delta, Dialect, needs_role
from parallax_core.api.bodies import ModelTokenizer, ParsedBody, to_json, unpack
from parallax_core.api.dialect import (
    HOLE,
    ResponseFlow,
    ServedModels,
    ServerOptions,
    TokenWriter,
    answer_whole,
    describe_answer,
    describe_body,
    describe_errors,
    describe_events,
    respond,
    write_lists,
    write_object,
)


@dataclass(slots=True)
class CompletionAnswer:
    """One answer to one prompt while its deltas are collected."""

    prompt: str
    """The text with which it begins: the prompt with ``echo``, else empty."""
    first: int | None
    """The first token of an echoed prompt."""
    logprobs: CompletionLogprobs | None
    texts: list[str] = field(default_factory=list)
    columns: Columns = field(default_factory=Columns)
    """The log-probabilities collected so far; not used for streams."""
    reason: StopReason | None = None
    has_begun: bool = False
    num_tokens: int = 0
    logprob: float = 0.0
    """The sum over all tokens."""

    async def take(self, delta: Delta, *, is_shown: bool) -> CompletionPiece:
        """Count a delta and return the next piece; hidden output has neither text nor log-probabilities."""
        self.num_tokens += len(delta.logprobs)
        self.logprob += sum(entry.logprob for entry in delta.logprobs)
        text, entries = (delta.text, delta.logprobs) if is_shown else ("", ())
        first = None
        if not self.has_begun:
            self.has_begun = True
            text, entries, first = self.prompt + text, delta.prompt_logprobs + entries, self.first
        self.reason = cast("StopReason | None", delta.ended) or self.reason
        return CompletionPiece(text, await self.logprobs.describe(entries, first) if self.logprobs else None)

    def write(self, index: int) -> Iterator[bytes]:
        """Yield the whole answer as JSON."""
        logprobs = self.columns.write() if self.logprobs else [b"null"]
        return write_object(CompletionChoice(index, "".join(self.texts), self.reason, HOLE), logprobs)

    def rank(self) -> float:
        """Return the mean log-probability of the tokens."""
        return self.logprob / max(self.num_tokens, 1)


@dataclass(frozen=True, slots=True)
class CompletionPiece:
    """The next piece of an answer."""

    text: str
    columns: Columns | None
    """The log-probabilities; None if the client did not ask for them."""


class Choices(dict[int, CompletionAnswer]):
    """Answers by their index, each created on first use: there may be tens of thousands."""

    def __init__(self, begin: Callable[[int], CompletionAnswer]) -> None:
        super().__init__()
        self._begin = begin

    def __missing__(self, place: int) -> CompletionAnswer:
        return self.setdefault(place, self._begin(place))


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """One request body, and the answers to its prompts."""

    text: ModelTokenizer
    writer: TokenWriter
    reading: ParsedBody
    flow: ResponseFlow
    reply: CompletionReply
    """The answer without choices, or its next chunk."""

    async def collect(self) -> Response:
        """Return all answers, ordered by prompt."""
        choices, is_shown = Choices(self._begin), self.reading.form.is_shown
        async for number, delta in self.flow.collect():
            choice = choices[number * self.reading.request.n + delta.index]
            piece = await choice.take(delta, is_shown=is_shown)
            choice.texts.append(piece.text)
            self.reply.note = read_note(delta) or self.reply.note
            if piece.columns is not None:
                choice.columns.extend(piece.columns)
        shown = (choices[place].write(index) for index, place in enumerate(self._choose(choices)))
        self.reply.usage, self.reply.choices = write_usage(self.flow, is_shown=is_shown), HOLE
        return respond(write_object(self.reply, write_lists(shown)))

    async def stream(self) -> AsyncIterator[EventData]:
        """Yield the chunks of all answers, in pieces if they have log-probabilities."""
        choices, is_shown, chunk = Choices(self._begin), self.reading.form.is_shown, self.reply
        if self.reading.form.includes_usage:
            chunk.usage = None
        async for number, delta in self.flow.read():
            place = number * self.reading.request.n + delta.index
            chunk.note = read_note(delta)
            piece = await choices[place].take(delta, is_shown=is_shown)
            if not (piece.text or delta.ended or piece.columns):
                continue
            choice = CompletionChoice(place, piece.text, cast("StopReason | None", delta.ended))
            if piece.columns is None:
                chunk.choices = [choice]
                yield to_json(chunk)
            else:
                chunk.choices, choice.logprobs = HOLE, HOLE
                yield write_object(chunk, write_lists([write_object(choice, piece.columns.write())]))
        if self.reading.form.includes_usage:
            chunk.choices, chunk.usage = [], write_usage(self.flow, is_shown=is_shown)
            yield to_json(chunk)

    def _begin(self, place: int) -> CompletionAnswer:
        """Return the empty answer with that index; answers are ordered by prompt."""
        form, number = self.reading.form, place // self.reading.request.n
        echo = form.echoes[number] if form.echoes else ""
        first = unpack(self.reading.prompts[number])[0] if form.echoes else None
        logprobs = None if form.logprobs is None else CompletionLogprobs(self.text, self.writer, form.logprobs)
        return CompletionAnswer(echo, first, logprobs)

    def _choose(self, choices: Choices) -> list[int]:
        """Return the indices of the answers to send: the best ones of each prompt."""
        drawn, wanted = self.reading.request.n, self.reading.form.num_answers
        total = len(self.reading.prompts) * drawn
        if drawn == wanted:
            return list(range(total))
        groups = [range(start, start + drawn) for start in range(0, total, drawn)]
        return [place for group in groups for place in sorted(group, key=lambda at: -choices[at].rank())[:wanted]]


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/completions",
        responses=describe_answer(CompletionReply, describe_events(CompletionReply)) | errors,
        openapi_extra=describe_body(CompletionRequest),
    )
    @needs_role("user")
    async def create_completion(http: fastapi.Request) -> Response:
        """Continue one prompt or several, whole or as server-sent events."""
        service = await models.find(http)
        reading, name = await service.read("completion", http), f"cmpl-{secrets.token_hex(12)}"
        flow = await service.submit(reading, name, http)
        reply = CompletionReply(
            id=name,
            created=int(time.time()),
            model=reading.form.model,
            system_fingerprint=make_fingerprint(service.model_id),
            choices=[],
        )
        completion = CompletionResponse(service.text, service.writer, reading, flow, reply)
        if reading.form.streams:
            return stream_chunks(completion.stream(), flow)
        return await answer_whole(http, completion.collect(), flow)

    return router
