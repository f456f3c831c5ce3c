"""Fake engines controlled by a test, and a router over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from typing import Any

from parallax_core.api import (
    Delta,
    Finish,
    Health,
    Reason,
    Request,
    RequestId,
    RoutingPolicy,
    Sampling,
    Stream,
)
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.routing.router import Router

NUMBERS = count()
CONTEXT = 64


class FakeStream:
    """A stream that yields the deltas and raises the errors that a test queues."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue()
        self.num_closed = 0

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while (said := await self.said.get()) is not None:
            if isinstance(said, BaseException):
                raise said
            yield said

    def close(self) -> None:
        self.num_closed += 1


class FakeEngine:
    """An engine controlled by a test."""

    def __init__(self) -> None:
        self.state = Health(state="starting")
        self.begin = asyncio.Event()
        self.begin.set()
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.submit_error: BaseException | None = None
        self.requests: list[Request] = []
        self.streams: list[FakeStream] = []
        self.asked = asyncio.Event()
        """Set by each request."""
        self.num_stopped = 0

    async def start(self) -> None:
        await self.begin.wait()
        if self.start_error:
            self.state = Health(state="failed", reason=str(self.start_error))
            raise self.start_error
        self.state = Health(state="ready")

    async def stop(self) -> None:
        self.num_stopped += 1
        self.state = Health(state="draining", reason="stopped")
        if self.stop_error:
            raise self.stop_error

    def submit(self, request: Request) -> Stream:
        if self.submit_error:
            raise self.submit_error
        self.requests.append(request)
        self.streams.append(FakeStream())
        self.asked.set()
        return self.streams[-1]

    def health(self) -> Health:
        return self.state

    def fail(self) -> None:
        self.state = Health(state="failed", reason="on fire")


def make_request(num_prompt: int = 10, max_tokens: int | None = 5, **more: Any) -> Request:
    prompt = tuple(range(num_prompt))
    sampling = Sampling(temperature=0)
    return Request(id=RequestId(str(next(NUMBERS))), prompt=prompt, max_tokens=max_tokens, sampling=sampling, **more)


def end(reason: Reason = "stop", message: str = "") -> Delta:
    return Delta(finish=Finish(reason=reason, prompt_tokens=0, output_tokens=0, message=message))


async def collect(stream: Stream) -> list[Delta]:
    """Return the deltas of a stream, without their times."""
    return [forget_times(delta) async for delta in stream]


def forget_times(delta: Delta) -> Delta:
    return delta if delta.finish is None else replace(delta, finish=replace(delta.finish, timing=None))


async def make_router(num_replicas: int, policy: RoutingPolicy | None = None) -> tuple[Router, list[FakeEngine]]:
    engines = [FakeEngine() for _ in range(num_replicas)]
    router = Router(engines, policy or LeastPendingTokens(), lambda: CONTEXT)
    await router.start()
    return router, engines


def pending(router: Router) -> list[int]:
    return [replica.pending_tokens for replica in router.describe()]


def requests(router: Router) -> list[int]:
    return [replica.num_requests for replica in router.describe()]
