from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.contracts.engine import Pin
from parallax_core.engine.limits import Limits
from parallax_core.engine.pins import CLIENT_SHARE, MOST_PINS, TOTAL_SHARE, KeptPin, PrefixPins
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import TOY, Replica, open_stages

PAGES = 32
MINE = Pin(300.0, b"me")


def make_replica(num_pages: int = PAGES, num_stages: int = 1, toy: Toy = TOY) -> Replica:
    return Replica(*open_stages(toy, num_stages, num_pages=num_pages), limits=Limits(max_running=4, max_waiting=1000))


def ask(replica: Replica, prompt: Sequence[int], **fields: Any) -> str:
    request = replica.ask(prompt, 2, **fields)
    replica.run()
    return request


def finish(replica: Replica, request: Any) -> Any:
    return replica.deltas[request][-1].finish


def crowd(replica: Replica, times: int = 40) -> None:
    """Let others use all of the memory, several times over."""
    for number in range(times):
        ask(replica, [60 + number % 3, number % 60, *range(8)])


def test_pinned_prompt_is_found_after_others_have_filled_the_memory() -> None:
    prompt = list(range(12))
    for pin, found in ((None, 0), (MINE, 11)):
        replica = make_replica()
        first = ask(replica, prompt, pin=pin)
        assert finish(replica, first).pinned_tokens == (12 if pin else 0)
        crowd(replica)
        assert finish(replica, ask(replica, prompt)).cached_tokens == found
        replica.check_tokens()


def test_pin_ends_when_its_time_has_passed() -> None:
    replica = make_replica()
    ask(replica, range(12), pin=MINE)
    replica.now += 300.0
    crowd(replica)
    assert finish(replica, ask(replica, range(12))).cached_tokens == 0


def test_next_turn_takes_the_place_of_the_pin_before_it() -> None:
    replica = make_replica()
    pins = replica.cache.stored.pins
    ask(replica, range(6), pin=Pin(3600.0, b"me"))
    replica.now += 10
    ask(replica, [*range(6), 50], pin=MINE)
    assert len(pins) == 2, "it does not go on with the answer"
    ask(replica, [*range(6), 50, 51, 52], pin=MINE)
    assert len(pins) == 3
    turn = [*range(6), 50, *replica.tokens(list(replica.requests)[1])]
    ask(replica, turn, pin=MINE)
    assert len(pins) == 3


def test_pin_that_is_asked_for_again_lasts_longer() -> None:
    replica = make_replica()
    ask(replica, range(12), pin=MINE)
    replica.now += 200
    ask(replica, range(12), pin=MINE)
    assert len(replica.cache.stored.pins) == 1
    replica.now += 200
    crowd(replica)
    assert finish(replica, ask(replica, range(12))).cached_tokens == 11


def test_shorter_time_does_not_cut_a_pin_short() -> None:
    replica = make_replica()
    ask(replica, range(12), pin=Pin(3600.0, b"me"))
    ask(replica, range(12), pin=MINE)
    replica.now += 1000
    crowd(replica)
    assert finish(replica, ask(replica, range(12))).cached_tokens == 11


def test_client_loses_its_pins_that_end_first() -> None:
    replica = make_replica(64)
    for number in range(12):
        assert finish(replica, ask(replica, [number, *range(10)], pin=MINE)).pinned_tokens == 11
    pins = replica.cache.stored.pins
    assert 0 < len(pins) < 12
    crowd(replica, 60)
    found = [finish(replica, ask(replica, [number, *range(10)])).cached_tokens for number in range(12)]
    assert found[0] == 0
    assert found[-1] == 10


def test_prompt_that_is_too_long_is_not_pinned() -> None:
    replica = make_replica()
    length = int(replica.ledger.capacity * CLIENT_SHARE)
    assert finish(replica, ask(replica, range(length), pin=MINE)).pinned_tokens == 0
    assert len(replica.cache.stored.pins) == 0


def test_request_that_is_alone_takes_the_memory_of_pins() -> None:
    replica = make_replica(16)
    for number in range(3):
        ask(replica, [90 + number, *range(8)], pin=Pin(300.0, bytes([number])))
    assert len(replica.cache.stored.pins) > 1
    whole = replica.ask(list(range(60)), replica.head.max_length - 60)
    replica.run()
    assert replica.reason(whole) == "length"
    replica.check_tokens()


def test_request_that_grows_alone_takes_the_memory_of_pins() -> None:
    replica = make_replica(16)
    ask(replica, [9, *range(8)], pin=MINE)
    assert len(replica.cache.stored.pins) == 1
    grown = replica.ask([70, 71], replica.head.max_length - 2)
    replica.run()
    assert replica.reason(grown) == "length"
    replica.check_tokens()


@pytest.mark.parametrize("kinds", [("full", "window"), ("state",)])
def test_models_without_prefixes_in_tokens_pin_nothing(kinds: Any) -> None:
    replica = make_replica(toy=Toy(kinds))
    assert finish(replica, ask(replica, range(12), pin=MINE)).pinned_tokens == 0
    replica.check_tokens()


def test_stages_that_are_lost_lose_their_pins() -> None:
    replica = make_replica()
    ask(replica, range(12), pin=MINE)
    replica.lose(TOY.open(num_pages=PAGES))
    assert len(replica.cache.stored.pins) == 0
    assert finish(replica, ask(replica, range(12), pin=MINE)).pinned_tokens == 12


REQUESTS = st.tuples(
    st.integers(0, 5),
    st.integers(1, 24),
    st.integers(1, 12),
    st.sampled_from([None, 0.05, 1.0, 300.0]),
    st.integers(0, 2),
)


@given(st.lists(st.tuples(REQUESTS, st.integers(0, 3)), max_size=30), st.integers(1, 2))
def test_every_request_ends_with_its_tokens_among_pins(traffic: Any, num_stages: int) -> None:
    replica = make_replica(24, num_stages)
    cache, capacity = replica.cache, replica.ledger.capacity
    for (kind, length, most, ttl_s, owner), steps in traffic:
        pin = None if ttl_s is None else Pin(ttl_s, bytes([owner]))
        replica.ask([kind, *range(length)], most, pin=pin, n=1 + (most % 5 == 0))
        for _ in range(steps):
            replica.step()
            held = [found for seq in cache.stored if (found := cache.stored.pins.find(seq))]
            assert len(held) == len(cache.stored.pins), "only stored sequences are pinned"
            assert sum(pin.length for pin in held) <= capacity * TOTAL_SHARE
            for number in range(3):
                assert sum(pin.length for pin in held if pin.owner == bytes([number])) <= capacity * CLIENT_SHARE
    replica.run()
    replica.check_tokens()


def test_pins_are_limited_in_number() -> None:
    pins = PrefixPins(10**9)
    for number in range(MOST_PINS):
        assert pins.add(number, KeptPin(b"a", 1, float(number)))  # type: ignore[arg-type]
    assert not pins.add(-1, KeptPin(b"b", 1, 9.0)), "pins of another client stay"  # type: ignore[arg-type]
    assert pins.add(-2, KeptPin(b"a", 1, 9.0))  # type: ignore[arg-type]
    assert len(pins) == MOST_PINS
    assert 0 not in pins


def test_pins_of_others_leave_less_room() -> None:
    pins = PrefixPins(1000)
    share = int(1000 * CLIENT_SHARE)
    owners = int(TOTAL_SHARE / CLIENT_SHARE)
    for number in range(owners):
        assert pins.add(number, KeptPin(bytes([number]), share, 9.0))  # type: ignore[arg-type]
    left = int(1000 * TOTAL_SHARE) - owners * share
    assert not pins.add(99, KeptPin(b"late", left + 1, 9.0))  # type: ignore[arg-type]
    assert len(pins) == owners
