"""Tests how engines start and stop, and how their streams end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from parallax_core.base.errors import ParallaxError, Unavailable
from parallax_core.contracts.engine import Delta, Engine, Stream
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.replica import EngineSubject, count_left
from parallax_core.testing.runner import beside, in_loop, within

NOT_READY = "if the engine is not ready, or too many requests wait"
START_FAILS = "Become ready. If it raises, nothing is left running"
STOP = "End every stream and release all resources. Idempotent; may be called at any time"
CLOSE = "Abort the request and end the iteration. Does nothing if it has ended or is closed"
ABORTED = "What happened, for the client"

SEVERAL = 6
STORM = 40
QUIET_S = 0.5


class EngineLife(EngineSubject):
    """Tests of start, stop, health, and of streams that are closed early."""

    @in_loop
    async def test_nothing_is_taken_before_start(self) -> None:
        """An engine that is not started is not ready, and takes nothing."""
        engine = self.make_engine()
        self._check_closed(engine, "before start")
        await within(self.patience_s, engine.stop(), "stop hangs", STOP)

    @in_loop
    async def test_started_engine_is_ready(self) -> None:
        """After start, health says ready, and requests are answered."""
        async with self.running() as engine:
            await self.check_well(engine)

    @in_loop
    async def test_failed_start_leaves_nothing_running(self) -> None:
        """Start raises, health says failed and why, no thread and no task is left, and stop is harmless."""
        before = set(threading.enumerate())
        engine = self.make_broken_engine()
        with expect(ParallaxError, "a start that fails", START_FAILS):
            await within(self.patience_s, engine.start(), "a start that fails hangs", START_FAILS)
        health = engine.health()
        is_told = health.state == "failed" and health.reason
        assert is_told, broken(f"after a start that failed, health is {health}", "Whether an engine can serve requests")
        left = await count_left(before, self.patience_s / 6)
        assert not left, broken(f"a start that failed left {left} threads or tasks running", START_FAILS)
        self._check_closed(engine, "after a start that failed")
        await within(self.patience_s, engine.stop(), "stop after a start that failed hangs", STOP)

    @in_loop
    async def test_stop_ends_every_stream(self) -> None:
        """Each stream that is open gets one terminal delta, aborted, in words; those not read yet, too."""
        async with self.running() as engine:
            requests = [
                self.make_request(self.prompts[number % 3], max_tokens=self.long_length) for number in range(SEVERAL)
            ]
            streams = [engine.submit(request) for request in requests]
            async with beside(self._read_first(streams[0])):
                await asyncio.sleep(0.01)
                await within(self.patience_s, engine.stop(), "stop hangs while streams are open", STOP)
            for stream, request in zip(streams[1:], requests[1:], strict=True):
                finish = (await self.read(stream, request)).finish
                is_right = finish.reason in {"aborted", "length"} and (finish.message or finish.reason == "length")
                assert is_right, broken(f"a stream that was open as the engine stopped ended with {finish}", ABORTED)

    @in_loop
    async def test_stop_is_legal_at_any_time(self) -> None:
        """Before start, while it starts, twice, and twice at once."""
        early = self.make_engine()
        for _ in range(2):
            await within(self.patience_s, early.stop(), "stop before start hangs", STOP)
        self._check_closed(early, "after a stop before start")
        starting = self.make_engine()
        async with beside(starting.start()) as task:
            await asyncio.sleep(0)
            await within(self.patience_s, starting.stop(), "stop while it starts hangs", STOP)
            await within(self.patience_s, asyncio.wait([task]), "start hangs when the engine is stopped", STOP)
        self._check_closed(starting, "after a stop while it started")
        async with self.running() as engine:
            both = asyncio.gather(engine.stop(), engine.stop())
            await within(self.patience_s, both, "two stops at once hang", STOP)
            await within(self.patience_s, engine.stop(), "a further stop hangs", STOP)

    @in_loop
    async def test_stopped_engine_takes_nothing_and_leaves_nothing(self) -> None:
        """After stop, health does not say ready, requests are refused, and no thread and no task is left."""
        before = set(threading.enumerate())
        async with self.running() as engine:
            await self.ask(engine)
        self._check_closed(engine, "after stop")
        left = await count_left(before, self.patience_s / 6)
        assert not left, broken(f"stop left {left} threads or tasks running", STOP)

    @in_loop
    async def test_closed_stream_is_aborted(self) -> None:
        """Closing a stream in its middle ends the work on it, and no other's."""
        async with self.running() as engine:
            alone = (await self.ask(engine, self.prompts[1])).tokens()
            request = self.make_request(max_tokens=self.long_length)
            stream, other = engine.submit(request), self.make_request(self.prompts[1])
            beside_it = engine.submit(other)
            late = await self._close_early(stream)
            tokens = sum(len(delta.tokens) for delta in late)
            fault = f"a stream that was closed after its first delta yielded {tokens} more tokens"
            assert tokens < self.long_length // 2, broken(fault, CLOSE)
            reply = await self.read(beside_it, other)
            is_same = reply.tokens() == alone
            assert is_same, broken("closing one stream has changed the answer of another", CLOSE)
            await self.check_well(engine)

    @in_loop
    async def test_close_is_harmless_twice_and_after_the_end(self) -> None:
        """A stream may be closed again and again, after its end, before its first delta, and after stop."""
        async with self.running() as engine:
            request = self.make_request()
            ended, unread = engine.submit(request), engine.submit(self.make_request())
            await self.read(ended, request)
            for stream in (ended, unread):
                for _ in range(2):
                    self._close(stream)
            await self.check_well(engine)
        self._close(unread)

    @in_loop
    async def test_storm_of_cancellations_leaves_the_engine_well(self) -> None:
        """However many requests are closed, at whatever moment, all they took is given back."""
        async with self.running() as engine:
            alone = [(await self.ask(engine, prompt)).tokens() for prompt in self.prompts]
            for turn in range(STORM):
                prompt = self.prompts[turn % len(self.prompts)]
                with suppress(Unavailable):
                    stream = engine.submit(self.make_request(prompt, max_tokens=self.long_length))
                    if turn % 4 == 1:
                        await asyncio.sleep(0.001 * (turn % 7))
                    elif turn % 4 == 2:  # noqa: PLR2004 - one of four ways
                        await self._read_first(stream)
                    self._close(stream)
            after = [(await self.ask(engine, prompt)).tokens() for prompt in self.prompts]
            assert after == alone, broken("after many requests were closed, others are answered differently", CLOSE)

    def _check_closed(self, engine: Engine, when: str) -> None:
        health = engine.health()
        assert health.state != "ready", broken(f"{when}, health says ready", "Whether an engine can serve requests")
        with expect(Unavailable, f"submitting {when}", NOT_READY):
            engine.submit(self.make_request())

    def _close(self, stream: Stream) -> None:
        try:
            stream.close()
        except Exception as error:
            raise AssertionError(broken(f"close raised {type(error).__name__}: {error}", CLOSE)) from error

    async def _read_first(self, stream: Stream) -> Delta | None:
        async def read() -> Delta | None:
            async for delta in stream:
                return delta
            return None

        return await within(self.patience_s, read(), "a stream yields nothing", "An item of a stream")

    async def _close_early(self, stream: Stream) -> list[Delta]:
        """Close a stream after its first delta; return its further deltas until it ends or is silent."""
        late: list[Delta] = []
        is_closed = False
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                async for delta in stream:
                    if is_closed:
                        late.append(delta)
                    else:
                        is_closed = True
                        self._close(stream)
                    limit.reschedule(asyncio.get_running_loop().time() + QUIET_S)
        return late
