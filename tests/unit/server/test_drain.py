"""A server that is about to stop lets running requests end, and takes no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from parallax_core.server.drain import Drain, DrainMiddleware


async def ask(app: Any, method: str = "POST", kind: str = "http") -> list[Message]:
    """Return what is sent in answer to a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await app({"type": kind, "method": method, "path": "/", "headers": []}, receive, send)
    return sent


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "answered"})


async def test_drain_waits_for_all_requests_and_no_longer() -> None:
    drain, gates = Drain(), [asyncio.Event() for _ in range(2)]

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await gates[scope["number"]].wait()
        await answer(scope, receive, send)

    app = DrainMiddleware(wait, drain)
    running = [
        asyncio.create_task(ask(lambda scope, *rest, number=number: app({**scope, "number": number}, *rest)))
        for number in range(2)
    ]
    await asyncio.sleep(0)
    draining = asyncio.create_task(drain.drain(60.0))
    for gate, is_over in zip(gates, (False, True), strict=True):
        assert not draining.done()
        gate.set()
        await asyncio.sleep(0.01)
        assert draining.done() == is_over
    assert await asyncio.gather(*running) == [[{"type": "answered"}]] * 2


async def test_drain_ends_at_its_limit_and_at_once_without_requests() -> None:
    drain = Drain()
    await asyncio.wait_for(drain.drain(60.0), 1)
    drain.enter()
    await asyncio.wait_for(drain.drain(0.01), 1)


async def test_request_that_fails_is_counted_no_longer() -> None:
    drain = Drain()

    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ask(DrainMiddleware(fail, drain))
    await asyncio.wait_for(drain.drain(60.0), 1)


async def test_closed_server_refuses_what_uses_the_model_and_nothing_else() -> None:
    drain = Drain()
    app = DrainMiddleware(answer, drain)
    assert await ask(app) == [{"type": "answered"}]
    await drain.drain(0.0)
    start, _ = await ask(app)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert (start["status"], headers["retry-after"], headers["connection"]) == (503, "5", "close")
    for method, kind in (("GET", "http"), ("POST", "lifespan")):
        assert await ask(app, method, kind) == [{"type": "answered"}]


async def test_message_that_has_not_arrived_ends_with_the_drain_or_its_deadline() -> None:
    drain, loop = Drain(), asyncio.get_running_loop()

    async def never() -> Message:
        await asyncio.Event().wait()
        return {}

    async def receive() -> Message:
        return {"type": "http.request"}

    assert await drain.receive_until(receive, loop.time() + 60) == {"type": "http.request"}
    with pytest.raises(TimeoutError):
        await drain.receive_until(never, loop.time() + 0.01)
    waiting = asyncio.create_task(drain.receive_until(never, loop.time() + 60))
    await asyncio.sleep(0)
    await drain.drain(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(TimeoutError, match="shutting down"):
        await drain.receive_until(receive, loop.time() + 60)
