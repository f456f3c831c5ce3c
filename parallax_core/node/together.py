"""Tasks that succeed together, or fail as the first of them failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Together:
    """A group of tasks, like `asyncio.TaskGroup`; the first error is raised as it is, not as part of a group."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task of the group."""
        return self._group.create_task(work)

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all; when one fails, the others are cancelled."""
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
