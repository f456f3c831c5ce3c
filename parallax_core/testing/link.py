"""Tests of a link with two healthy ends: order, whole frames, back-pressure and cancelled calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_core.contracts.tensor import Data
from parallax_core.contracts.transport import Frame, FrameLimits, Link
from parallax_core.testing.pair import (
    QUIET_S,
    Nodes,
    Pair,
    make_bytes,
    number_frame,
    read_number,
    send_numbers,
    take_numbers,
)
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.runner import beside, in_loop, within

ORDER = "in the order sent, without loss or duplication"
WHOLE = "if several tasks send at the same time, each frame is sent whole"
CREDIT = "The number of frames in transit on a link before the sender waits for the receiver"
CANCEL_SEND = "If cancelled, it sends the whole frame or nothing"
CANCEL_RECEIVE = "Cancelling it loses no frame"
LIMITS = "if the frame exceeds the limits; the link stays usable"
ALIVE = "Seconds without a heartbeat after which a peer counts as lost"

MANY = 300
"""Frames in a test of their order."""
SIZES = (0, 1, 3, 4095, 4096, 65_537, 1_048_577)
"""Bytes of the buffers of one frame."""
SENDERS = 8
ROUNDS = 40


class LinkConformance(Nodes):
    """Tests of one link between two nodes of one process."""

    @in_loop
    async def test_frames_keep_their_order_both_ways(self) -> None:
        """Many frames each way at once arrive in the order they were sent."""
        async with self.paired() as pair:
            for taken in await self._exchange(pair):
                assert taken == sorted(taken), broken(f"frames arrived in the order {_show_disorder(taken)}", ORDER)

    @in_loop
    async def test_no_frame_is_lost(self) -> None:
        """Each frame that was sent arrives."""
        async with self.paired() as pair:
            for taken in await self._exchange(pair):
                lost = sorted(set(range(MANY)) - set(taken))
                assert not lost, broken(f"of {MANY} frames, numbers {lost[:5]} did not arrive", ORDER)

    @in_loop
    async def test_no_frame_is_doubled(self) -> None:
        """No frame arrives twice."""
        async with self.paired() as pair:
            for taken in await self._exchange(pair):
                doubled = sorted({number for number in taken if taken.count(number) > 1})
                assert not doubled, broken(f"of {MANY} frames, numbers {doubled[:5]} arrived twice", ORDER)

    @in_loop
    async def test_buffers_arrive_bit_exact(self) -> None:
        """Headers and buffers of any bytes and sizes, the empty one included, arrive as they were sent."""
        buffers: tuple[Data, ...] = tuple(make_bytes(size) for size in SIZES)
        kinds = (*buffers, bytearray(b"\0\xff" * 50), memoryview(make_bytes(100))[7:93], b"")
        async with self.paired() as pair:
            for frame in (Frame(bytes(range(256)), kinds), Frame(b"\0"), Frame(b"x", (b"",)), Frame(b"x", (b"", b""))):
                await self._check_passage(pair, frame)

    @in_loop
    async def test_largest_buffer_arrives_bit_exact(self) -> None:
        """A buffer of ``large_bytes`` arrives as it was sent, and what comes after it arrives too."""
        async with self.paired() as pair:
            await self._check_passage(pair, Frame(b"large", (make_bytes(self.large_bytes),)))
            await self._check_passage(pair, Frame(b"small"))

    @in_loop
    async def test_concurrent_senders_send_whole_frames(self) -> None:
        """Frames of tasks that send at once do not mix, and those of one task keep their order."""
        async with self.paired() as pair, beside(self._send_marked(pair.near)) as sending:
            seen = [self._read_mark(await self.take(pair.far)) for _ in range(SENDERS * ROUNDS)]
            await sending
        for sender in range(SENDERS):
            numbers = [number for task, number in seen if task == sender]
            assert numbers == list(range(ROUNDS)), broken(f"frames of one task arrived as {numbers[:9]}", ORDER)

    @in_loop
    async def test_sender_waits_when_nothing_is_taken(self) -> None:
        """A sender gets ahead of its receiver by ``credit`` frames (and ``slack``), and no further."""
        async with self.paired() as pair, self._flooded(pair) as (sent, _):
            most = self.credit + self.slack
            got = f"{sent} frames were sent to a receiver that takes none, with a credit of {self.credit}"
            assert sent <= most, broken(f"{got} and a slack of {self.slack}", CREDIT)
            assert sent >= self.credit, broken(f"only {got}", CREDIT)

    @in_loop
    async def test_waiting_sender_goes_on_when_frames_are_taken(self) -> None:
        """What a sender has waited with arrives once the receiver takes frames, and in order."""
        count = 10 * self.credit
        async with self.paired() as pair, beside(send_numbers(pair.near, range(count))) as sending:
            await asyncio.sleep(QUIET_S)
            taken = await take_numbers(pair.far, count, self.patience_s)
            assert taken == list(range(count)), broken(f"{len(taken)} of {count} frames arrived: {taken[:9]}", CREDIT)
            await sending

    @in_loop
    async def test_cancelled_receive_loses_no_frame(self) -> None:
        """However a receive is cancelled, before a frame comes or as it comes, the next one returns that frame."""
        taken: list[int] = []
        async with self.paired() as pair, beside(send_numbers(pair.near, range(ROUNDS))):
            for turn in range(5 * ROUNDS):
                receiving = asyncio.ensure_future(pair.far.receive())
                for _ in range(turn % 7):
                    await asyncio.sleep(0)
                if not turn % 5:
                    await asyncio.sleep(0.001)  # frames cross a socket meanwhile
                receiving.cancel()
                for result in await asyncio.gather(receiving, return_exceptions=True):
                    taken += [read_number(result)] if isinstance(result, Frame) else []
            taken += await take_numbers(pair.far, ROUNDS - len(taken), self.patience_s)
        lost = sorted(set(range(ROUNDS)) - set(taken))
        assert not lost, broken(f"after cancelled receives, frames {lost[:5]} of {ROUNDS} were lost", CANCEL_RECEIVE)
        assert taken == list(range(ROUNDS)), broken(f"after cancelled receives, frames came as {taken[:9]}", ORDER)

    @in_loop
    async def test_cancelled_send_sends_all_or_nothing(self) -> None:
        """Frames whose send was cancelled arrive whole or not at all, and the link goes on."""
        content = make_bytes(2**18)
        async with self.paired() as pair:
            # First there is soon no room and sends wait; then frames are taken as they are sent.
            done = await self._send_cancelled(pair.near, range(ROUNDS), content)
            async with beside(self._take_until(pair.far, 2 * ROUNDS)) as taking:
                done |= await self._send_cancelled(pair.near, range(ROUNDS, 2 * ROUNDS), content)
                await self.send(pair.near, number_frame(2 * ROUNDS))
                fault = "after cancelled sends, a frame that was sent did not arrive"
                taken = await within(self.patience_s, taking, fault, CANCEL_SEND)
        for number, buffers in taken:
            is_whole = buffers == [content]
            assert is_whole, broken(f"after cancelled sends, frame {number} arrived in part", CANCEL_SEND)
        numbers = [number for number, _ in taken]
        assert numbers == sorted(set(numbers)), broken(f"after cancelled sends, frames came as {numbers}", ORDER)
        assert done <= set(numbers), broken(f"frames {sorted(done - set(numbers))} were sent and lost", ORDER)

    @in_loop
    async def test_frame_beyond_the_limits_is_refused(self) -> None:
        """The sender of too large a frame gets a ValueError, and can send others."""
        limits = FrameLimits(header_bytes=100, frame_bytes=1000, buffers=3)
        frames = {
            "a header of 101 bytes where 100 are allowed": Frame(bytes(101)),
            "1001 bytes where 1000 are allowed": Frame(b"x", (bytes(1000),)),
            "4 buffers where 3 are allowed": Frame(b"x", (b"",) * 4),
            "an empty header": Frame(b""),
        }
        async with self.paired(limits=limits) as pair:
            for what, frame in frames.items():
                with expect(ValueError, f"sending {what}", LIMITS):
                    await self.send(pair.near, frame)
                await self._check_passage(pair, Frame(bytes(100), (b"1", b"2" * 899, b"")))

    @in_loop
    async def test_idle_link_lives_on(self) -> None:
        """A link over which nothing was sent for three times ``timeout_s`` still carries frames."""
        async with self.paired(timeout_s=self.timeout_s) as pair:
            await asyncio.sleep(3 * self.timeout_s)
            await self._check_passage(pair, Frame(b"still here"))

    @in_loop
    async def test_slow_receiver_is_not_lost(self) -> None:
        """A peer that takes nothing for three times ``timeout_s`` is alive: its sender waits."""
        async with self.paired(timeout_s=self.timeout_s) as pair, self._flooded(pair) as (_, sending):
            await asyncio.sleep(3 * self.timeout_s)
            lost = sending.exception() if sending.done() else None
            assert lost is None, broken(f"sending to a slow receiver ended with {lost!r}", ALIVE)
            await take_numbers(pair.far, self.credit, self.patience_s)

    async def _exchange(self, pair: Pair) -> tuple[list[int], list[int]]:
        """Send `MANY` frames each way at once, and return what arrived at either end."""
        numbers = range(MANY)
        async with beside(send_numbers(pair.near, numbers)), beside(send_numbers(pair.far, numbers)):
            there = take_numbers(pair.far, MANY, self.patience_s)
            taken = await asyncio.gather(there, take_numbers(pair.near, MANY, self.patience_s))
        return taken[0], taken[1]

    async def _send_cancelled(self, link: Link, numbers: range, content: bytes) -> set[int]:
        """Send frames, cancelling each send sooner or later; return the numbers of those that were over before."""
        done = set()
        for number in numbers:
            async with beside(link.send(number_frame(number, content))) as sending:
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending])
                done |= set() if sending.cancelled() else {number}
        return done

    async def _take_until(self, link: Link, last: int) -> list[tuple[int, list[bytes]]]:
        """Return the numbers and buffers of the frames before number ``last``."""
        taken = []
        while (number := read_number(frame := await link.receive())) != last:
            taken.append((number, [bytes(buffer) for buffer in frame.buffers]))
        return taken

    async def _check_passage(self, pair: Pair, frame: Frame) -> None:
        """Send a frame each way, and compare what arrives."""
        for near, far in ((pair.near, pair.far), (pair.far, pair.near)):
            async with beside(self.send(near, frame)) as sending:
                arrived = await self.take(far)
                await sending
            assert bytes(arrived.header) == frame.header, broken("a header arrived changed", "A message as bytes")
            sent = [bytes(buffer) for buffer in frame.buffers]
            sizes = f"buffers of {[len(it) for it in sent]} bytes arrived as {[len(it) for it in arrived.buffers]}"
            assert len(arrived.buffers) == len(sent), broken(sizes, "The data of its tensors")
            for there, here in zip(arrived.buffers, sent, strict=True):
                assert len(there) == len(here), broken(sizes, "The data of its tensors")
                assert bytes(there) == here, broken("a buffer arrived with other bytes", "The data of its tensors")

    async def _send_marked(self, link: Link) -> None:
        """Send at once as `SENDERS` tasks, each with buffers filled with a byte of its own."""

        async def send(sender: int) -> None:
            for number in range(ROUNDS):
                buffers = [bytes([sender + 1]) * size for size in (1, 0, 40_000 + number, 17)]
                await link.send(number_frame(sender * ROUNDS + number, *buffers))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for sender in range(SENDERS):
                group.create_task(send(sender))

    def _read_mark(self, frame: Frame) -> tuple[int, int]:
        """Return the sender of such a frame and its number there."""
        sender, number = divmod(read_number(frame), ROUNDS)
        content = b"".join(bytes(buffer) for buffer in frame.buffers)
        is_whole = content == bytes([sender + 1]) * (40_018 + number)
        assert is_whole, broken(f"a frame of task {sender} holds bytes of others, or lacks some", WHOLE)
        return sender, number

    @asynccontextmanager
    async def _flooded(self, pair: Pair) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
        """Send and take nothing; give how many frames were sent when it got quiet, and the task that still sends."""
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent < MANY:
                await pair.near.send(number_frame(sent))
                sent += 1
                await asyncio.sleep(0)

        async with beside(flood()) as sending:
            before = -1
            while sent > before:
                before = sent
                await asyncio.sleep(QUIET_S)
            yield sent, sending


def _show_disorder(numbers: list[int]) -> str:
    """Return the numbers around the first that came too late."""
    at = next(i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1])
    return f"... {', '.join(map(str, numbers[max(0, at - 2) : at + 2]))} ..."
