"""Ends the tasks of an engine, one by one and by every kind of error, and tests that this is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from parallax_core.base.errors import Unavailable
from parallax_core.contracts.engine import Engine, Stream
from parallax_core.testing.promise import broken
from parallax_core.testing.replica import EngineSubject, Reply
from parallax_core.testing.runner import LIMIT_S, within

NOTICED = "Whatever ends its work, every stream ends, and it works again or is not ready"

LOOK_S = 0.05
"""Seconds between two looks at an engine whose task was ended."""
LOOKS = 40
"""The looks at an engine that starts again, before it is stopped and another one is made."""
BUSY_S = 0.01
"""Seconds that streams run before the task is ended."""
OPEN = 3
"""The streams that are open then."""
IS_ENGINE = ContextVar("IS_ENGINE", default=False)
"""Whether a task that is created belongs to the engine: tasks inherit it."""


class PlainError(Exception):
    """An error as most are."""


class Panic(BaseException):
    """An error of a library written in another language, which is no `Exception`."""


class Exit(SystemExit):
    """An attempt to end the process, which ends the event loop too."""


class UserInterrupt(KeyboardInterrupt):
    """The same by the user."""


class Breakable(Coroutine[Any, Any, Any]):
    """A coroutine that can be made to raise an error where it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.__qualname__ = getattr(work, "__qualname__", str(work))
        self.error: BaseException | None = None
        """Raised in place of a cancellation."""

    def send(self, value: Any) -> Any:  # noqa: ANN401 -- as the coroutine's own
        """Go on."""
        return self.work.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: object = None,
        trace: TracebackType | None = None,
    ) -> Any:  # noqa: ANN401 -- as the coroutine's own
        """Raise an error where it waits."""
        del value, trace
        error, self.error = self.error or kind, None
        return self.work.throw(error if isinstance(error, BaseException) else error())

    def close(self) -> None:
        """End it."""
        self.work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.work.__await__()


@dataclass(slots=True)
class EngineTasks:
    """The tasks that an engine has started."""

    found: dict[asyncio.Task[Any], Breakable] = field(default_factory=dict)

    def make(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 -- a task factory
        """Make a task; note it if it is one of the engine."""
        if not IS_ENGINE.get():
            return asyncio.Task(work, loop=loop, **options)
        breakable = Breakable(work)
        task = asyncio.Task(breakable, loop=loop, **options)
        self.found[task] = breakable
        return task

    def list_names(self) -> list[str]:
        """Return the names of the tasks that run, in the order of their start."""
        self.found = {task: breakable for task, breakable in self.found.items() if not task.done()}
        names = ((task.get_name(), breakable.__qualname__) for task, breakable in self.found.items())
        return [own if named.startswith("Task-") else named for named, own in names]

    def end(self, index: int, kind: type[BaseException]) -> None:
        """End a running task by an error, or by cancelling it."""
        task, breakable = list(self.found.items())[index]
        if kind is not asyncio.CancelledError:
            breakable.error = kind("ended on purpose")
        task.cancel()


@contextmanager
def marking() -> Iterator[None]:
    """Mark tasks that are created as those of the engine."""
    token = IS_ENGINE.set(True)
    try:
        yield
    finally:
        IS_ENGINE.reset(token)


def run_on(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end on a loop of its own, and resume the loop if `Exit` or `UserInterrupt` have ended it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        main = loop.create_task(asyncio.wait_for(work, LIMIT_S))
        while not main.done():
            try:
                loop.run_until_complete(main)
            except (Exit, UserInterrupt):
                continue
        main.result()


class EngineEnds(EngineSubject):
    """Tests that no engine stays ready and mute."""

    def test_error_that_ends_a_task_is_noticed(self) -> None:
        """Each task of the engine is ended by an error: all streams end, and the engine works again or is not ready."""
        run_on(self._end_all(PlainError))

    def test_panic_that_ends_a_task_is_noticed(self) -> None:
        """The same by an error that is no `Exception`."""
        run_on(self._end_all(Panic))

    def test_exit_that_ends_a_task_is_noticed(self) -> None:
        """The same by a `SystemExit` or a `KeyboardInterrupt`, if the loop goes on."""
        run_on(self._end_all(Exit, UserInterrupt))

    def test_cancelled_task_is_noticed(self) -> None:
        """The same by somebody else who cancels it."""
        run_on(self._end_all(asyncio.CancelledError))

    async def _end_all(self, *kinds: type[BaseException]) -> None:
        """End each task by one of ``kinds`` in turn."""
        tasks, index = EngineTasks(), 0
        asyncio.get_running_loop().set_task_factory(tasks.make)
        engine = await self._start()
        try:
            while True:
                streams = self._ask_all(engine)
                await asyncio.sleep(BUSY_S)
                names = tasks.list_names()
                if index >= len(names):
                    break
                kind = kinds[index % len(kinds)]
                tasks.end(index, kind)
                if not await self._check_noticed(engine, streams, f"{names[index]} was ended by {kind.__name__}"):
                    await self._stop(engine)
                    engine = await self._start()
                index += 1
        finally:
            await self._stop(engine)

    async def _check_noticed(self, engine: Engine, streams: list[tuple[Stream, Any]], when: str) -> bool:
        """Check that the streams end, and that the engine knows; return whether it works."""
        for stream, request in streams:
            finish = (await self._read(stream, request, when)).finish
            is_told = finish.reason == "length" or (finish.reason in {"error", "aborted"} and finish.message)
            assert is_told, broken(f"when {when}, a stream ended with {finish}", "What happened, for the client")
        for _ in range(LOOKS):
            health = engine.health()
            if health.state == "failed":
                break
            if health.state == "ready" and await self._answers(engine, when):
                return True
            await asyncio.sleep(LOOK_S)
        is_told = health.state != "ready" and health.reason
        assert is_told, broken(f"when {when}, the engine answers nothing, and its health is {health}", NOTICED)
        return False

    async def _answers(self, engine: Engine, when: str) -> bool:
        request = self.make_request()
        try:
            with marking():
                stream = engine.submit(request)
        except Unavailable:  # it has just noticed
            return False
        return (await self._read(stream, request, when)).finish.reason == "length"

    async def _read(self, stream: Stream, request: Any, when: str) -> Reply:  # noqa: ANN401 -- a request
        try:
            return await self.read(stream, request)
        except AssertionError as error:
            raise AssertionError(broken(f"when {when}: {error}", NOTICED)) from error

    def _ask_all(self, engine: Engine) -> list[tuple[Stream, Any]]:
        requests = [self.make_request(self.prompts[index], max_tokens=self.long_length) for index in range(OPEN)]
        with marking():
            return [(engine.submit(request), request) for request in requests]

    async def _start(self) -> Engine:
        with marking():
            engine = self.make_engine()
            await within(self.patience_s, engine.start(), "start hangs", "Become ready")
        return engine

    async def _stop(self, engine: Engine) -> None:
        await within(self.patience_s, engine.stop(), "stop hangs", "End every stream and release all resources")
