"""Asks engines over a link to a task or a process of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from parallax_core.api import (
    Delta,
    Finish,
    Request,
    RequestId,
)
from parallax_core.testing.token_engine import TextEngine
from parallax_core.testing.toy import GREEDY, Toy
from tests.support.engine_workers import LinkedEngine
from tests.unit.node.cluster import soon

TOY = Toy(("full", "window", "full"))


NUMBERS = count()


def decode(tokens: Any) -> str:
    return "".join(f"<{token}>" for token in tokens)


def ask(prompt: tuple[int, ...] = (1, 2, 3), length: int = 12, **changes: Any) -> Request:
    request = Request(id=RequestId(f"r{next(NUMBERS)}"), prompt=prompt, max_tokens=length, sampling=GREEDY)
    return replace(request, **changes)


@asynccontextmanager
async def running(linked: LinkedEngine) -> AsyncIterator[TextEngine]:
    engine = TextEngine(linked, decode)
    await soon(engine.start())
    try:
        yield engine
    finally:
        await soon(engine.stop())


async def read(engine: Any, request: Request) -> list[Delta]:
    return await soon(collect(engine.submit(request)))


async def collect(stream: Any) -> list[Delta]:
    return [delta async for delta in stream]


async def check_answer(engine: Any) -> None:
    request = ask()
    deltas = await read(engine, request)
    assert [token for delta in deltas for token in delta.tokens] == TOY.continuation(request.prompt, 12)


def get_finish(deltas: list[Delta]) -> Finish:
    assert deltas[-1].finish is not None
    return deltas[-1].finish
