"""What waits to be read is counted, and bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Delta, Finish
from parallax_core.contracts.engine import TokenLogprob
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.pipeline.unread import SHARE, UnreadOutput, weigh

LAST = Delta(finish=Finish(reason="stop", prompt_tokens=1, output_tokens=1))
WEIGHT = weigh(Delta(text="word"))


def make_delta(number: int, top: int | None) -> Delta:
    if top is None:
        return Delta(text=f" word{number}", tokens=(1000 + number,))
    best = tuple((2000 + number + place, -1.0 - place - number * 1e-6) for place in range(top))
    entry = TokenLogprob(1000 + number, -0.5 - number * 1e-6, best)
    return Delta(text=f" word{number}", tokens=(1000 + number,), logprobs=(entry,))


@pytest.mark.parametrize("top", [None, 0, 5, 20])
def test_weight_is_about_what_a_delta_takes(top: int | None) -> None:
    tracemalloc.start()
    try:
        held = [make_delta(number, top) for number in range(3000)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < sum(map(weigh, held)) / taken < 1.4


async def test_stream_that_nobody_reads_is_cut_and_its_request_aborted() -> None:
    aborted: list[int] = []
    backlog = UnreadOutput(4 * 10 * WEIGHT)
    stream = QueueStream(lambda: aborted.append(1), backlog)
    for _ in range(100):
        stream.put(Delta(text="word"))
    assert aborted == [1]
    assert backlog.num_bytes == 0
    [only] = [delta async for delta in stream]
    assert only.finish is not None
    assert (only.finish.reason, "its client has left" in only.finish.message) == ("timeout", True)


async def test_stream_that_is_read_is_never_cut() -> None:
    stream = QueueStream(pytest.fail, UnreadOutput(4 * 10 * WEIGHT))
    reader = aiter(stream)
    for _ in range(1000):
        stream.put(Delta(text="word"))
        assert (await anext(reader)).text == "word"
    stream.put(LAST)
    assert [delta async for delta in reader] == [LAST]


async def test_of_many_streams_the_one_that_holds_most_is_cut() -> None:
    aborted: list[str] = []
    backlog = UnreadOutput(40 * WEIGHT)

    def make(name: str) -> QueueStream:
        return QueueStream(lambda: aborted.append(name), backlog)

    streams = [make(f"small {number}") for number in range(4)]
    greedy = make("greedy")
    for _ in range(9):
        greedy.put(Delta(text="word"))
    for _ in range(8):
        for stream in streams:
            stream.put(Delta(text="word"))
    assert aborted == ["greedy"]
    assert backlog.num_bytes == 32 * WEIGHT
    for stream in streams:
        stream.put(LAST)
        assert len([delta async for delta in stream]) == 9
    assert backlog.num_bytes == 0


async def test_stream_that_is_closed_holds_nothing() -> None:
    backlog = UnreadOutput()
    for end in (Delta(text="word"), LAST):
        stream = QueueStream(lambda: None, backlog)
        stream.put(Delta(text="word"))
        stream.put(end)
        assert backlog.num_bytes > 0
        stream.close()
        stream.close()
        assert backlog.num_bytes == stream.unread == 0
        assert [delta async for delta in stream] == []


Act = Callable[[list[QueueStream], int], None]
ACTS = st.lists(st.tuples(st.sampled_from(("put", "read", "close", "finish")), st.integers(0, 3)), max_size=200)


@given(ACTS)
def test_account_is_that_of_what_is_held(acts: list[tuple[str, int]]) -> None:
    backlog = UnreadOutput(100 * WEIGHT)
    streams = [QueueStream(lambda: None, backlog) for _ in range(4)]
    readers = [aiter(stream) for stream in streams]
    for act, number in acts:
        stream = streams[number]
        if act == "put":
            stream.put(Delta(text="word"))
        elif act == "finish":
            stream.put(LAST)
        elif act == "close":
            stream.close()
        elif stream.unread:
            read_one(stream, readers[number])
        assert backlog.num_bytes == sum(stream.unread for stream in streams) <= 100 * WEIGHT
    for stream, reader in zip(streams, readers, strict=True):
        while stream.unread:
            read_one(stream, reader)
    assert backlog.num_bytes == 0


def read_one(stream: QueueStream, reader: Any) -> None:
    """Read a delta, which is there, so that nothing waits, and check that it counts no more."""
    before = stream.unread
    with pytest.raises(StopIteration) as read:
        reader.__anext__().send(None)
    assert before - stream.unread == weigh(read.value.value)


async def test_streams_are_cut_beyond_their_share_and_not_at_it() -> None:
    backlog = UnreadOutput(SHARE * 10 * WEIGHT)
    streams = [QueueStream(lambda: None, backlog) for _ in range(SHARE)]
    assert all(backlog.has_room(10 * WEIGHT, 0) for _ in streams)
    assert not backlog.has_room(10 * WEIGHT, 1)
    for stream in streams:
        for _ in range(10):
            stream.put(Delta(text="word"))
    assert backlog.num_bytes == SHARE * 10 * WEIGHT
    assert not backlog.has_room(1, 0)
