from __future__ import annotations

import asyncio

import pytest

from parallax_core.base.tasks import WatchedWork, contain_exit, start_task


async def leave() -> None:
    raise SystemExit(3)


async def test_exit_of_a_task_is_its_error_and_does_not_end_the_loop() -> None:
    task = start_task(leave())
    await asyncio.wait([task])
    assert task.get_name() == "leave"
    with pytest.raises(RuntimeError, match="it wanted to end the process: SystemExit: 3"):
        task.result()
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await contain_exit(leave())


async def test_task_that_is_cancelled_before_it_begins_leaves_no_coroutine_that_nobody_awaits() -> None:
    task = start_task(leave())
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


class Panic(BaseException):
    pass


async def end(error: BaseException | None) -> None:
    await asyncio.sleep(0)
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x"), ValueError("x")),
        (Panic("x"), Panic("x")),
        (SystemExit(3), RuntimeError("it wanted to end the process: SystemExit: 3")),
        (asyncio.CancelledError(), RuntimeError("end was cancelled from outside")),
        (None, RuntimeError("end has ended by itself")),
    ],
)
async def test_end_of_any_kind_is_told_once(error: BaseException | None, reason: BaseException) -> None:
    told: list[BaseException] = []
    task = WatchedWork(end(error), told.append)
    while not told:  # noqa: ASYNC110 -- nothing is set when it is told
        await asyncio.sleep(0)
    await task.cancel()
    assert [(type(each), str(each)) for each in told] == [(type(reason), str(reason))]


async def test_cancelled_work_has_ended_and_nobody_is_told() -> None:
    told: list[BaseException] = []
    is_over = False

    async def work() -> None:
        nonlocal is_over
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            is_over = True

    task = WatchedWork(work(), told.append)
    await asyncio.sleep(0)
    await task.cancel()
    await task.cancel()
    assert (is_over, told) == (True, [])
