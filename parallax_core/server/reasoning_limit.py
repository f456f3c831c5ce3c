"""Ends the reasoning of an answer after a number of tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Engine, Finish, Health, Request, Stream, TokenLogprob
from parallax_core.contracts.parser import Reasoning
from parallax_core.engine.answer_text import AnswerText
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.timing import Timeline
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.answer_parsing import make_parser
from parallax_core.server.body_messages import ResponseForm


class ReasoningLimit:
    """An engine whose answers reason for a limited number of tokens.

    At the limit it aborts the request, and submits it again with the tokens so far and those that end the reasoning as
    `Request.delivered`: the model continues with its answer. Only for an engine that is `Resumable`.
    """

    def __init__(self, engine: Engine, parser: OutputParser, form: ResponseForm, decode: Decode) -> None:
        """Limit ``engine`` to ``form.max_reasoning`` tokens; ``decode`` makes its text."""
        self.engine = engine
        self.parser = parser
        self.form = form
        self.decode = decode

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
        self._text = AnswerText(limit.decode, request, frozenset(limit.form.reasoning_end))
        """The text of the tokens so far, as the engine makes it: what it holds back at the limit is not lost."""
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
        yield (end := self._end_reasoning())
        if self._is_closed or end.finish is not None:
            return
        self._stream = self._limit.engine.submit(self._continue())
        async for delta in self._stream:
            self._timeline.advance(time.monotonic())
            yield replace(delta, finish=self._complete(delta.finish)) if delta.finish else delta

    def close(self) -> None:
        """Abort the request."""
        self._is_closed = True
        self._stream.close()

    def _is_over(self, delta: Delta) -> bool:
        """Add a delta; return whether the reasoning has reached its limit and there is room for an answer."""
        for token in delta.tokens:
            self._add(token)
            if pieces := self._parser.feed(self._text.decoded):
                self._is_reasoning = isinstance(pieces[-1], Reasoning)
        most, end = self._request.max_tokens, self._limit.form.reasoning_end
        has_room = most is None or len(self._tokens) + len(end) < most
        limit = self._limit.form.max_reasoning
        is_within_character = not self._text.decoded  # after which no grammar lets the reasoning end
        return (
            self._is_reasoning
            and has_room
            and limit is not None
            and len(self._tokens) >= limit
            and not is_within_character
        )

    def _add(self, token: int) -> str:
        """Add a token, and return the text that it completes, as `Sequence` does."""
        self._tokens.append(token)
        if token in self._request.stop_ids:
            return self._text.finish()
        return self._text.feed(token, is_exempt=len(self._tokens) <= self._request.sampling.min_tokens)

    def _end_reasoning(self) -> Delta:
        """Return the delta that ends the reasoning: with what the engine has held back, and as if the model drew it.

        No other token was possible, so the log-probability of each is 0. A stop string or token in it ends the answer.
        """
        text, top, is_over = "", self._request.logprobs, False
        added: list[int] = []
        for token in self._limit.form.reasoning_end:
            text += self._add(token)
            added.append(token)
            if is_over := self._text.has_stopped or token in self._request.stop_ids:
                break
        scores = [TokenLogprob(token, 0.0, ((token, 0.0),) if top else ()) for token in added]
        delta = Delta(text=text, tokens=tuple(added), logprobs=tuple(scores) if top is not None else ())
        return self._end(delta) if is_over else delta

    def _end(self, delta: Delta) -> Delta:
        """Return the delta as the last one of the answer."""
        num_prompt, timing = len(self._request.prompt), self._timeline.read()
        finish = Finish(reason="stop", prompt_tokens=num_prompt, output_tokens=len(self._tokens), timing=timing)
        return replace(delta, ended="stop", stop_string=self._text.stop_string, finish=finish)

    def _complete(self, finish: Finish) -> Finish:
        """Return the finish of the second request for the whole answer: the first request's own finish is not known."""
        own, timing = self._timeline.read(), finish.timing
        if timing is not None:
            timing = replace(timing, queued_s=own.queued_s, prefill_s=own.prefill_s, decode_s=own.decode_s)
        return replace(finish, cached_tokens=0, timing=timing)

    def _continue(self) -> Request:
        waited_s = time.monotonic() - self._timeline.arrived
        name = RequestId(f"{self._request.id}-continued")
        return replace(self._request, id=name, waited_s=waited_s, delivered=(tuple(self._tokens),))
