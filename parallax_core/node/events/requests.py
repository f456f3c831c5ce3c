"""Emits events for the beginning and end of each request, never for its tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from parallax_core.contracts.engine import Delta, Engine, Finish, Request, Stream
from parallax_core.contracts.event import EngineReady, Event, RequestBegan, RequestEnded
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.node.routing.router import Router

GONE = "the client went away"


@dataclass(frozen=True, slots=True)
class RequestEvents:
    """The receiver of the events of a model's requests, and the clocks."""

    model: str
    tell: Callable[[Event], None]
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    now: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""


class EventRouter(Router):
    """A router that emits an event when it is ready, and when a request begins or ends."""

    def __init__(
        self, engines: Sequence[Engine], policy: RoutingPolicy, max_length: Callable[[], int], watch: RequestEvents
    ) -> None:
        super().__init__(engines, policy, max_length)
        self._watch = watch

    async def start(self) -> None:
        """Start the replicas, and emit `EngineReady`."""
        watch, began = self._watch, self._watch.now()
        await super().start()
        watch.tell(EngineReady(at=watch.wall(), model=watch.model, load_s=watch.now() - began))

    def submit(self, request: Request) -> Stream:
        """Submit a request, and emit `RequestBegan` once it is accepted."""
        watch = self._watch
        stream = EventStreamReader(super().submit(request), request, watch)
        watch.tell(RequestBegan(at=watch.wall(), model=watch.model, id=request.id, prompt_tokens=len(request.prompt)))
        return stream


class EventStreamReader:
    """Passes on a stream's deltas and emits `RequestEnded` once."""

    def __init__(self, stream: Stream, request: Request, watch: RequestEvents) -> None:
        self._stream = stream
        self._request = request
        self._watch = watch
        self._began = watch.now()
        self._first_s: float | None = None
        self._num_tokens = 0
        self._is_over = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas."""
        async for delta in self._stream:
            if delta.tokens:
                self._num_tokens += len(delta.tokens)
                if self._first_s is None:
                    self._first_s = self._watch.now() - self._began
            if delta.finish is not None:
                self._end(delta.finish)
            yield delta

    def close(self) -> None:
        """Close the stream; one that has not ended yet is aborted."""
        self._stream.close()
        prompt = len(self._request.prompt)
        self._end(Finish(reason="aborted", prompt_tokens=prompt, output_tokens=self._num_tokens, message=GONE))

    def _end(self, finish: Finish) -> None:
        if self._is_over:
            return
        self._is_over, watch = True, self._watch
        watch.tell(
            RequestEnded(
                at=watch.wall(),
                model=watch.model,
                id=self._request.id,
                finish=finish,
                first_token_s=self._first_s,
                duration_s=watch.now() - self._began,
            )
        )
