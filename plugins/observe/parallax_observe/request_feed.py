"""Shows requests, and tells those who follow them what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal

import msgspec

from parallax_core.api.deployment import RunningRequest
from parallax_core.api.dialect import ResponseModel, write_named
from parallax_observe.request_record import RecordedRequest
from parallax_observe.tracing import split_time

LOOK_S = 0.25
"""Seconds between two looks at the requests, for each client that follows them."""
MOST_MESSAGE = 300
"""The most characters of an error that are shown."""
PHASES = frozenset({"queue", "prefill", "decode", "recovery"})
"""The parts of a request that lie one after the other, or within another; all others are sums over steps."""

Progress = Mapping[str, Mapping[str, RunningRequest]]
"""How far running requests are, by model and id, of the models whose engines tell."""


class PartReply(ResponseModel):
    """A part of a request's time."""

    name: str
    """``queue``, ``prefill``, ``decode``, ``recovery``, ``stage N``, ``hop N``, ``sampling`` or ``detokenize``."""
    start_seconds: float
    """From the request's arrival at its engine; of a sum over steps, the end of the queue."""
    seconds: float
    is_sum: bool
    """Whether it is a sum over steps, which may overlap."""


class RequestReply(ResponseModel):
    """A request."""

    id: str
    """That of the answer, such as ``chatcmpl-…``, with the number of the prompt if there are several."""
    model: str
    state: Literal["running", "ended"]
    began: float
    """The time of its arrival at the engine, in seconds since 1970."""
    seconds: float
    """From then to its end, or until now."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    phase: Literal["queue", "prefill", "decode"] | None
    """What it is doing; null: it has ended, or its engine does not tell."""
    computed_tokens: int
    """Of its prompt while it runs, those that are computed or were cached; 0 if its engine does not tell."""
    first_token_seconds: float | None
    """Null: it runs, or no token was drawn."""
    reason: str | None
    """Why it ended, such as ``stop``, ``length``, ``aborted``, ``timeout`` or ``error``; null: it runs."""
    message: str | None
    """The error, if it ended with one."""
    parts: list[PartReply]
    """Empty while it runs, and for an engine that measures nothing."""


class RequestsReply(ResponseModel):
    """The answer to ``GET /v1/requests``."""

    object: Literal["list"]
    now: float
    """The time of the server, in seconds since 1970."""
    data: list[RequestReply]
    """First running, then ended ones, the latest of each first."""


async def follow(show: Callable[[], RequestsReply]) -> AsyncIterator[bytes]:
    """Yield what ``show`` returns as an event, and then, by further events, new and changed requests."""
    sent: dict[str, RequestReply] | None = None
    while True:
        reply = show()
        shown, before = {each.id: each for each in reply.data}, sent or {}
        changed = [each for each in reply.data if each.id not in before or _differ(each, before[each.id])]
        if changed or sent is None:
            data = msgspec.json.encode(msgspec.structs.replace(reply, data=changed))
            yield write_named("requests", data)
        sent = shown
        await asyncio.sleep(LOOK_S)


def _differ(request: RequestReply, before: RequestReply) -> bool:
    """Return whether something has changed but the time."""
    return msgspec.structs.replace(request, seconds=before.seconds) != before


def show_request(request: RecordedRequest, now: float, progress: Progress) -> RequestReply:
    """Return what is shown of a request; ``now``: in seconds since 1970."""
    ended = request.ended
    told = None if ended else progress.get(request.model)
    running = told.get(request.id) if told else None
    finish = ended and ended.finish
    return RequestReply(
        id=request.id,
        model=request.model,
        state="ended" if ended else "running",
        began=request.began,
        seconds=ended.duration_s if ended else max(0.0, now - request.began),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=finish.cached_tokens if finish else 0,
        output_tokens=finish.output_tokens if finish else running.output_tokens if running else 0,
        phase=None if told is None else _find_phase(running),
        computed_tokens=running.prompt_tokens if running else 0,
        first_token_seconds=ended.first_token_s if ended else None,
        reason=finish.reason if finish else None,
        message=(finish.message[:MOST_MESSAGE] or None) if finish else None,
        parts=[
            PartReply(part.name, part.start_s, part.took_s, part.name not in PHASES)
            for part in (split_time(ended.duration_s, ended.finish) if ended else ())
            if part.name != "read"
        ],
    )


def _find_phase(running: RunningRequest | None) -> Literal["queue", "prefill", "decode"]:
    """Return what a request does; None: it has no step yet."""
    if running is None:
        return "queue"
    return "decode" if running.output_tokens else "prefill"
