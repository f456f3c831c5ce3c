"""``POST /v1/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import fastapi
from fastapi.responses import JSONResponse, Response

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Delta, Reason, TokenLogprob
from parallax_core.server.description import describe_body, describe_errors, describe_events
from parallax_core.server.flow import EventStream, Flow, while_connected
from parallax_core.server.logprobs import CompletionLogprobs, Shape
from parallax_core.server.reading import Reading, unpack
from parallax_core.server.reply import CompletionReply
from parallax_core.server.schema import CompletionRequest
from parallax_core.server.served import Served


@dataclass(slots=True)
class Choice:
    """One answer to one prompt, as it is put together."""

    prompt: str
    """What it begins with: the prompt's text with ``echo``, nothing without."""
    first: int | None
    """The first token of an echoed prompt."""
    logprobs: CompletionLogprobs | None
    index: int = 0
    texts: list[str] = field(default_factory=list)
    entries: list[TokenLogprob] = field(default_factory=list)
    reason: Reason | None = None
    has_begun: bool = False

    def take(self, delta: Delta, *, is_shown: bool) -> tuple[str, Shape | None]:
        """Return the text that comes next and its log-probabilities; output that is not shown has neither."""
        text, entries = (delta.text, delta.logprobs) if is_shown else ("", ())
        first = None
        if not self.has_begun:
            self.has_begun = True
            text, entries, first = self.prompt + text, delta.prompt_logprobs + entries, self.first
        self.reason = delta.ended or self.reason
        return text, self.logprobs.describe(entries, first) if self.logprobs else None

    def rank(self) -> float:
        """Return the mean log-probability of the tokens."""
        return sum(entry.logprob for entry in self.entries) / max(len(self.entries), 1)


@dataclass(frozen=True, slots=True)
class Completion:
    """One request body, and the answers to its prompts."""

    served: Served
    reading: Reading
    flow: Flow
    id: str
    created: int

    async def collect(self) -> JSONResponse:
        """Return all answers, those to one prompt side by side."""
        choices = self._begin()
        pieces: list[list[tuple[str, Shape | None]]] = [[] for _ in choices]
        async for number, delta in self.flow.read():
            place = number * self.reading.request.n + delta.index
            pieces[place].append(choices[place].take(delta, is_shown=self.reading.form.is_shown))
            choices[place].entries += delta.logprobs
        chosen = self._choose(choices)
        shapes = [self._shape(at, choices[place], pieces[place]) for at, place in enumerate(chosen)]
        usage = self.flow.usage(is_shown=self.reading.form.is_shown)
        return JSONResponse({**self._common(), "choices": shapes, "usage": usage})

    async def stream(self) -> AsyncIterator[Shape]:
        """Yield the chunks of all answers."""
        choices = self._begin()
        async for number, delta in self.flow.read():
            place = number * self.reading.request.n + delta.index
            piece = choices[place].take(delta, is_shown=self.reading.form.is_shown)
            if piece[0] or delta.ended or (piece[1] and piece[1]["tokens"]):
                choice = self._choice(place, *piece) | {"finish_reason": delta.ended}
                yield {**self._common(), "choices": [choice]}
        if self.reading.form.includes_usage:
            yield {**self._common(), "choices": [], "usage": self.flow.usage(is_shown=self.reading.form.is_shown)}

    def _begin(self) -> list[Choice]:
        """Return all answers, those to one prompt side by side."""
        reading, num_prompts = self.reading, len(self.reading.prompts)
        echoes: Sequence[tuple[str, int | None]] = [("", None)] * num_prompts
        if reading.form.echoes:
            echoes = [
                (echo, unpack(prompt)[0]) for echo, prompt in zip(reading.form.echoes, reading.prompts, strict=True)
            ]
        return [Choice(*echo, self._make_logprobs()) for echo in echoes for _ in range(reading.request.n)]

    def _make_logprobs(self) -> CompletionLogprobs | None:
        top = self.reading.form.logprobs
        return None if top is None else CompletionLogprobs(self.served.text, top)

    def _choose(self, choices: list[Choice]) -> list[int]:
        """Return the places of the answers to send: of each prompt's, the best."""
        drawn, wanted = self.reading.request.n, self.reading.form.num_answers
        if drawn == wanted:
            return list(range(len(choices)))
        groups = [range(start, start + drawn) for start in range(0, len(choices), drawn)]
        return [place for group in groups for place in sorted(group, key=lambda at: -choices[at].rank())[:wanted]]

    def _shape(self, index: int, choice: Choice, pieces: list[tuple[str, Shape | None]]) -> Shape:
        text = "".join(text for text, _ in pieces)
        logprobs = _join([shape for _, shape in pieces if shape]) if self.reading.form.logprobs is not None else None
        return self._choice(index, text, logprobs) | {"finish_reason": choice.reason}

    @staticmethod
    def _choice(index: int, text: str, logprobs: Shape | None) -> Shape:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _common(self) -> Shape:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.reading.form.model}


def _join(shapes: list[Shape]) -> Shape:
    """Return one ``logprobs`` for a whole text out of those of its pieces."""
    joined: dict[str, list[object]] = {}
    for shape in shapes:
        for name, values in shape.items():
            assert isinstance(values, list)
            joined.setdefault(name, []).extend(values)
    return dict(joined)


def make_router(served: Served) -> fastapi.APIRouter:
    """Return the route for ``served``."""
    router = fastapi.APIRouter()

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/completions",
        response_model=CompletionReply,
        responses={**describe_events(CompletionReply), **errors},
        openapi_extra=describe_body(CompletionRequest),
    )
    async def create_completion(http: fastapi.Request) -> Response:
        """Continue one prompt or several, whole or as server-sent events."""
        reading, name = await served.read("completion", http), f"cmpl-{secrets.token_hex(12)}"
        flow = await _submit(served, reading, name, http)
        completion = Completion(served, reading, flow, name, int(time.time()))
        if reading.form.streams:
            return EventStream(completion.stream(), flow)
        try:
            return await while_connected(http, completion.collect())
        finally:
            flow.close()

    return router


async def _submit(served: Served, reading: Reading, name: str, http: fastapi.Request) -> Flow:
    try:
        return await served.submit(reading, name, http)
    except InvalidRequest as error:
        if error.param == "messages":  # what an engine calls a prompt
            raise InvalidRequest(error.message, "prompt", "shorten it") from error
        raise
