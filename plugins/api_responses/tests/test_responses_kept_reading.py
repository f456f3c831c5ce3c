from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from parallax_api_responses.kept_reading import KeptReading
from parallax_core.base.errors import Overloaded
from parallax_core.node.pipeline.unread import SHARE, UnreadOutput

MOST = 1000
ME, YOU = b"me", b"you"


def open_readings(number: int, owner: bytes, backlog: UnreadOutput, held: Counter[bytes]) -> list[KeptReading]:
    return [KeptReading(backlog, held, owner) for _ in range(number)]


def test_readers_of_a_client_have_a_share_together() -> None:
    backlog, held = UnreadOutput(MOST), Counter[bytes]()
    first, second, third = open_readings(3, ME, backlog, held)
    first.hold(100)
    second.hold(MOST // SHARE - 100)
    with pytest.raises(Overloaded):
        third.hold(1)
    first.hold(90)
    third.hold(10)
    [other] = open_readings(1, YOU, backlog, held)
    other.hold(100)
    for reading in (first, second, third, other):
        reading.close()
        reading.close()
    assert (backlog.num_bytes, dict(held)) == (0, {})


def test_readers_do_not_cut_the_answers_of_others() -> None:
    backlog, held = UnreadOutput(MOST), Counter[bytes]()
    [answer] = open_readings(1, YOU, backlog, held)
    backlog.add(answer, MOST // SHARE)
    clients = [b"%d" % number for number in range(20)]
    refused = 0
    for client in clients:
        [reading] = open_readings(1, client, backlog, held)
        try:
            reading.hold(200)
        except Overloaded:
            refused += 1
    assert refused == 17
    answer.hold(1)  # it goes on


async def test_stream_that_finds_no_room_ends_with_an_event_that_says_so() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 100
        backlog.add(other, MOST - 100)
        yield b"x" * 101

    backlog, held = UnreadOutput(MOST), Counter[bytes]()
    reading, other = open_readings(2, ME, backlog, held)
    first, last = [piece async for piece in reading.read(pieces())]
    assert first == b"x" * 100
    name, data, *_ = last.decode().split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert (error["type"], error["code"]) == ("error", "rate_limit_exceeded")
