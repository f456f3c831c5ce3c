"""Emits events for the beginning and end of each request, never for its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from parallax_core.contracts.engine import Finish, Request, Timing
from parallax_core.contracts.event import EngineReady, Event, RequestBegan, RequestEnded


@dataclass(frozen=True, slots=True)
class RequestEvents:
    """The receiver of the events of a model's requests, and the clocks."""

    model: str
    tell: Callable[[Event], None]
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    now: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""

    def note_ready(self, load_s: float) -> None:
        """Emit `EngineReady`; ``load_s``: how long the start took, in seconds."""
        self.tell(EngineReady(at=self.wall(), model=self.model, load_s=load_s))

    def note_begun(self, request: Request) -> None:
        """Emit `RequestBegan` for a request that was accepted."""
        self.tell(RequestBegan(at=self.wall(), model=self.model, id=request.id, prompt_tokens=len(request.prompt)))

    def note_ended(self, request: Request, finish: Finish) -> None:
        """Emit `RequestEnded` for a request that is over, in whatever way."""
        timing = finish.timing or Timing()
        first_s = timing.queued_s + timing.prefill_s
        self.tell(
            RequestEnded(
                at=self.wall(),
                model=self.model,
                id=request.id,
                finish=finish,
                first_token_s=first_s if finish.output_tokens else None,
                duration_s=first_s + timing.decode_s,
            )
        )


def _ignore(event: Event) -> None:
    del event


NO_EVENTS = RequestEvents("", _ignore)
"""Discards events."""
