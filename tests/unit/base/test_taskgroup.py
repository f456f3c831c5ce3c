from __future__ import annotations

import asyncio

import pytest

from parallax_core.base.taskgroup import TURN, FailFastGroup, run_in_turns


async def give(number: int) -> int:
    return number


async def fail(error: Exception, after: int = 0) -> None:
    for _ in range(after):
        await asyncio.sleep(0)
    raise error


async def test_all_results_are_there_in_the_end() -> None:
    async with FailFastGroup() as group:
        tasks = [group.start(give(number)) for number in range(3)]
    assert [task.result() for task in tasks] == [0, 1, 2]


async def test_task_that_begins_after_all_others_have_ended_is_waited_for() -> None:
    async with FailFastGroup() as group:
        await group.start(give(1))
        late = group.start(asyncio.sleep(0.01, 2))
    assert late.result() == 2


async def test_first_error_is_raised_as_it_is_and_ends_the_others() -> None:
    first, second = ValueError("first"), KeyError("second")
    tasks: list[asyncio.Task[bool]] = []

    async def work() -> None:
        async with FailFastGroup() as group:
            tasks.append(group.start(asyncio.Event().wait()))
            group.start(fail(second, after=3))
            group.start(fail(first, after=1))

    with pytest.raises(ValueError, match="first") as caught:
        await work()
    assert caught.value is first
    assert tasks[0].cancelled()


async def test_error_of_the_body_ends_the_tasks() -> None:
    tasks: list[asyncio.Task[bool]] = []

    async def work() -> None:
        async with FailFastGroup() as group:
            tasks.append(group.start(asyncio.Event().wait()))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await work()
    assert tasks[0].cancelled()


@pytest.mark.parametrize("steps", range(6))
async def test_cancellation_at_the_moment_of_an_error_is_not_swallowed(steps: int) -> None:
    async def work() -> None:
        async with FailFastGroup() as group:
            group.start(fail(ValueError(), after=2))
            group.start(asyncio.Event().wait())

    task = asyncio.create_task(work())
    for _ in range(steps):
        await asyncio.sleep(0)
    is_in_time = task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled() == is_in_time


async def test_end_of_the_tasks_is_waited_for_however_often_it_is_cancelled() -> None:
    ended = False

    async def linger() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            ended = True

    async def work() -> None:
        async with FailFastGroup() as group:
            group.start(linger())

    task = asyncio.create_task(work())
    for _ in range(3):
        await asyncio.sleep(0.002)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_exit_of_a_task_is_an_error_of_the_group() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="it wanted to end the process: SystemExit: 3"):
        async with FailFastGroup() as group:
            group.start(leave())


@pytest.mark.parametrize("is_inner", [False, True])
async def test_task_that_somebody_else_cancels_is_an_error(*, is_inner: bool) -> None:
    tasks: list[asyncio.Task[bool]] = []
    inner: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def wait() -> bool:
        return await inner

    async def work() -> None:
        async with FailFastGroup() as group:
            tasks.append(group.start(asyncio.Event().wait()))
            tasks.append(group.start(wait()))

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (inner if is_inner else tasks[1]).cancel()
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="wait was cancelled from outside its group"):
            await working
    assert tasks[0].cancelled()


async def test_works_begin_a_few_in_each_turn_of_the_loop() -> None:
    turn, begun, gate = 0, list[int](), asyncio.Event()

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work() -> None:
        begun.append(turn)
        await gate.wait()

    tasks = [asyncio.create_task(each) for each in (count(), run_in_turns(work() for _ in range(5 * TURN)))]
    while len(begun) < 5 * TURN:  # noqa: ASYNC110 -- turns are counted
        await asyncio.sleep(0)
    assert max(begun.count(each) for each in begun) <= TURN
    assert not tasks[1].done()
    gate.set()
    await tasks[1]
    tasks[0].cancel()


async def test_cancelled_turns_cancel_all_their_works() -> None:
    ended = list[bool]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_turns(work() for _ in range(3))
    await asyncio.sleep(0)
    assert len(ended) == 3


async def test_as_many_works_begin_in_a_turn_as_may() -> None:
    begun: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)

    running = asyncio.create_task(run_in_turns(work(number) for number in range(2 * TURN + 1)))
    seen = []
    while not running.done():
        await asyncio.sleep(0)
        seen.append(len(begun))
    assert {TURN, 2 * TURN, 2 * TURN + 1} <= set(seen)
    assert set(seen) <= {0, TURN, 2 * TURN, 2 * TURN + 1}
