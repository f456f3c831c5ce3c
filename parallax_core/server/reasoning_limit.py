"""Ends the reasoning of an answer after a number of tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Engine, Finish, Health, Request, Stream
from parallax_core.contracts.parser import Reasoning
from parallax_core.engine.timing import Timeline
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.answer_parsing import make_parser
from parallax_core.server.body_messages import ResponseForm


class ReasoningLimit:
    """An engine whose answers reason for a limited number of tokens.

    At the limit it aborts the request, and submits it again with the tokens so far and those that end the reasoning as
    `Request.delivered`: the model continues with its answer. Only for an engine that is `Resumable`.
    """

    def __init__(self, engine: Engine, parser: OutputParser, form: ResponseForm, end_text: str) -> None:
        """Limit ``engine`` to ``form.max_reasoning`` tokens; ``end_text`` is the text of ``form.reasoning_end``."""
        self.engine = engine
        self.parser = parser
        self.form = form
        self.end_text = end_text

    async def start(self) -> None:
        """Start the engine."""
        await self.engine.start()

    async def stop(self) -> None:
        """Stop the engine."""
        await self.engine.stop()

    def submit(self, request: Request) -> Stream:
        """Submit a request for a single answer."""
        return LimitedStream(self, request)

    def health(self) -> Health:
        """Return the engine's health."""
        return self.engine.health()


class LimitedStream:
    """The deltas of one answer."""

    def __init__(self, limit: ReasoningLimit, request: Request) -> None:
        self._limit = limit
        self._request = request
        now = time.monotonic()
        self._timeline = Timeline(now - request.waited_s, begun=now)
        self._tokens: list[int] = []
        self._is_closed = False
        self._is_reasoning = False
        self._parser = make_parser(limit.parser, limit.form)
        self._stream = limit.engine.submit(request)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas; the text that ends the reasoning is one of them."""
        async for delta in self._stream:
            self._timeline.advance(time.monotonic())
            yield delta
            if delta.finish is None and self._is_over(delta):
                break
        else:
            return
        self._stream.close()
        end = self._limit.form.reasoning_end
        yield Delta(text=self._limit.end_text, tokens=end)
        if self._is_closed:
            return
        self._stream = self._limit.engine.submit(self._continue((*self._tokens, *end)))
        async for delta in self._stream:
            self._timeline.advance(time.monotonic())
            yield replace(delta, finish=self._complete(delta.finish)) if delta.finish else delta

    def close(self) -> None:
        """Abort the request."""
        self._is_closed = True
        self._stream.close()

    def _is_over(self, delta: Delta) -> bool:
        """Add a delta; return whether the reasoning has reached its limit and there is room for an answer."""
        self._tokens += delta.tokens
        if pieces := self._parser.feed(delta.text):
            self._is_reasoning = isinstance(pieces[-1], Reasoning)
        most, end = self._request.max_tokens, self._limit.form.reasoning_end
        has_room = most is None or len(self._tokens) + len(end) < most
        limit = self._limit.form.max_reasoning
        return self._is_reasoning and has_room and limit is not None and len(self._tokens) >= limit

    def _complete(self, finish: Finish) -> Finish:
        """Return the finish of the second request for the whole answer: the first request's own finish is not known."""
        own, timing = self._timeline.read(), finish.timing
        if timing is not None:
            timing = replace(timing, queued_s=own.queued_s, prefill_s=own.prefill_s, decode_s=own.decode_s)
        return replace(finish, cached_tokens=0, timing=timing)

    def _continue(self, delivered: tuple[int, ...]) -> Request:
        waited_s = time.monotonic() - self._timeline.arrived
        name = RequestId(f"{self._request.id}-continued")
        return replace(self._request, id=name, waited_s=waited_s, delivered=(delivered,))
