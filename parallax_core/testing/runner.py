"""Runs asynchronous tests as plain ones, with a time limit."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from parallax_core.testing.promise import broken

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 120.0
"""The time limit of a kit's test, in seconds."""


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn an async test into a plain one that runs it on an event loop of its own, for at most `LIMIT_S`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(_bound(test(*args, **kwargs), test.__name__))

    return run


async def _bound(work: Coroutine[Any, Any, None], name: str) -> None:
    limit = asyncio.timeout(LIMIT_S)
    try:
        async with limit:
            await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(f"{name} was not over after {LIMIT_S:g} s: something hangs") from error


async def within(seconds: float, work: Awaitable[T], fault: str, promise: str) -> T:
    """Return what ``work`` gives; fail with ``fault`` and ``promise`` if that takes longer than ``seconds``."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(broken(f"{fault} (after {seconds:g} s)", promise)) from error


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run ``work`` beside the block, and cancel it in the end; its error is raised where it is awaited."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
