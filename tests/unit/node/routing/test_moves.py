"""Requests that wait for a replica, at the borders of the task that places them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parallax_core.api import Finish
from parallax_core.node.routing.moves import MoveQueue

END = Finish(reason="stop", prompt_tokens=1, output_tokens=1)
RANK = (0.0, 1)
URGENCIES = {"late": (1.0, 9), "urgent": (0.0, 5), "early": (1.0, 2)}


@pytest.mark.parametrize("num_turns", range(4))
async def test_request_that_comes_as_the_task_of_others_ends_is_placed(num_turns: int) -> None:
    """That task's end, of which the queue hears a turn later, concerns the requests of that task alone."""
    queue, asked = MoveQueue(), list[int]()

    def attempt() -> Any:
        asked.append(1)
        return END if len(asked) > 2 else "replica"

    assert await queue.place(RANK, lambda: END) is END
    for _ in range(num_turns):
        await asyncio.sleep(0)
    assert await asyncio.wait_for(queue.place(RANK, attempt), 5) is END
    assert len(asked) == 3


async def test_most_urgent_request_is_tried_first() -> None:
    queue, order, room = MoveQueue(), list[str](), asyncio.Event()

    def make_attempt(name: str) -> Any:
        def attempt() -> Any:
            order.append(name)
            return END if room.is_set() else "room"

        return attempt

    placing = [asyncio.create_task(queue.place(rank, make_attempt(name))) for name, rank in URGENCIES.items()]
    await asyncio.sleep(0.01)
    assert queue.needs_room
    assert order[:3] == ["urgent", "early", "late"]
    room.set()
    assert await asyncio.wait_for(asyncio.gather(*placing), 5) == [END] * 3


async def test_request_whose_reader_is_gone_is_not_tried_again() -> None:
    queue, tried = MoveQueue(), asyncio.Event()

    def attempt() -> Any:
        tried.set()
        return "room"

    placing = asyncio.create_task(queue.place(RANK, attempt))
    await tried.wait()
    placing.cancel()
    await asyncio.gather(placing, return_exceptions=True)
    assert not queue.needs_room


async def test_error_of_one_request_ends_it_and_the_others_are_placed(caplog: pytest.LogCaptureFixture) -> None:
    queue, num_asked = MoveQueue(), 0

    def fail() -> Any:
        raise ZeroDivisionError("why")

    def attempt() -> Any:
        nonlocal num_asked
        num_asked += 1
        return END if num_asked > 1 else "replica"

    async with asyncio.timeout(5):
        failed, placed = await asyncio.gather(queue.place((0.0, 1), fail), queue.place((1.0, 1), attempt))
    assert (failed, placed) == (None, END)
    assert caplog.messages == ["request cannot be moved"]


async def test_end_of_the_task_ends_the_requests_that_wait_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    queue = MoveQueue()

    def end() -> Any:
        raise asyncio.CancelledError

    async with asyncio.timeout(5):
        ended, other = await asyncio.gather(queue.place((0.0, 1), end), queue.place((1.0, 1), lambda: END))
    assert (ended, other) == (None, None)
    assert caplog.messages == []
    assert await queue.place(RANK, lambda: END) is END
