"""Emits events for the beginning and end of each request, never for its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.contracts.engine import Engine, Finish, Request, Stream, Timing
from parallax_core.contracts.event import EngineReady, Event, RequestBegan, RequestEnded
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.node.routing.router import RECOVERY_TIMEOUT_S, Router


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
        self,
        engines: Sequence[Engine],
        policy: RoutingPolicy,
        max_length: Callable[[], int],
        watch: RequestEvents,
        recovery_timeout_s: float = RECOVERY_TIMEOUT_S,
    ) -> None:
        super().__init__(engines, policy, max_length, recovery_timeout_s)
        self._watch = watch
        self._clock = watch.now

    async def start(self) -> None:
        """Start the replicas, and emit `EngineReady`."""
        watch, began = self._watch, self._watch.now()
        await super().start()
        watch.tell(EngineReady(at=watch.wall(), model=watch.model, load_s=watch.now() - began))

    def submit(self, request: Request) -> Stream:
        """Submit a request, and emit `RequestBegan` once it is accepted."""
        watch = self._watch
        stream = super().submit(request)
        watch.tell(RequestBegan(at=watch.wall(), model=watch.model, id=request.id, prompt_tokens=len(request.prompt)))
        return stream

    def _end(self, request: Request, finish: Finish) -> None:
        timing = finish.timing or Timing()
        first_s = timing.queued_s + timing.prefill_s
        watch = self._watch
        watch.tell(
            RequestEnded(
                at=watch.wall(),
                model=watch.model,
                id=request.id,
                finish=finish,
                first_token_s=first_s if finish.output_tokens else None,
                duration_s=first_s + timing.decode_s,
            )
        )
