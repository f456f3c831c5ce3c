from __future__ import annotations

import random
from itertools import count, takewhile

from hypothesis import given
from hypothesis import strategies as st

from parallax_transport_lattica.inbox import MOST_BYTES, WINDOW, Inbox
from parallax_transport_lattica.packet import MOST_CONTENT, Reply


@given(st.lists(st.binary(max_size=9), max_size=60), st.randoms(use_true_random=False))
def test_packets_in_any_order_and_twice_are_a_stream(contents: list[bytes], rng: random.Random) -> None:
    inbox, taken = Inbox(), bytearray()
    left = [*enumerate(contents, 1), (len(contents) + 1, None)] * 2
    while left:
        number, content = each = rng.choice(left[: 2 * WINDOW])
        if inbox.add(number, content or b"", is_last=content is None) is Reply.TAKEN:
            left.remove(each)
        if rng.random() < 0.3:
            taken += inbox.take()
        rng.shuffle(left)
        left.sort(key=lambda each: each[0] // WINDOW)  # as a window has it
    taken += inbox.take()
    assert bytes(taken) == b"".join(contents)
    assert inbox.is_ended


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, MOST_CONTENT), st.booleans()), max_size=80))
def test_inbox_holds_little_whatever_arrives(packets: list[tuple[int, int, bool]]) -> None:
    inbox, held = Inbox(), dict[int, int]()
    for number, size, is_last in packets:
        if inbox.add(number, bytes(size), is_last=is_last) is Reply.TAKEN:
            held.setdefault(number, size)
        assert sum(held.values()) <= 2 * MOST_BYTES + MOST_CONTENT
    in_order = takewhile(held.__contains__, count(1))
    assert len(inbox.take()) == sum(held[number] for number in in_order)


def test_packets_that_came_early_do_not_keep_out_the_one_that_is_due() -> None:
    inbox = Inbox()
    for number in range(2, 2 + WINDOW):
        assert inbox.add(number, bytes(MOST_CONTENT)) is Reply.TAKEN
    assert inbox.add(2 + WINDOW, bytes(MOST_CONTENT)) is Reply.BUSY
    assert inbox.ask(1) is Reply.TAKEN
    assert inbox.add(1, bytes(MOST_CONTENT)) is Reply.TAKEN
    assert inbox.ask(2 + WINDOW) is Reply.BUSY is inbox.add(2 + WINDOW, b"x")
    assert len(inbox.take()) == (WINDOW + 1) * MOST_CONTENT
    assert inbox.ask(2 + WINDOW) is Reply.TAKEN


def test_nothing_follows_the_end() -> None:
    inbox = Inbox()
    assert inbox.add(3, b"", is_last=True) is Reply.TAKEN
    states = [inbox.is_ended]
    assert inbox.add(4, b"x") is Reply.BAD
    assert inbox.add(0, b"x") is Reply.BAD
    assert inbox.add(2, b"b") is Reply.TAKEN
    assert inbox.add(2, b"", is_last=True) is Reply.TAKEN  # a packet of this number has come, and counts
    assert inbox.add(1, b"a") is Reply.TAKEN
    states.append(inbox.is_ended)
    assert states == [False, True]
    assert inbox.take() == b"ab"


def test_end_before_what_has_come_is_refused() -> None:
    inbox = Inbox()
    inbox.add(3, b"c")
    assert inbox.add(2, b"", is_last=True) is Reply.BAD
