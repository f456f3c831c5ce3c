from __future__ import annotations

import pytest

from parallax_core.contracts.engine import Pin
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import TOY, Replica


def test_pinned_sequences_are_passed_over_and_put_behind() -> None:
    replica = Replica(TOY.open(num_pages=40))
    stored = replica.cache.stored
    for number, pin in enumerate((Pin(300.0), None, None)):
        replica.ask([number, *range(8)], 2, pin=pin)
        replica.run()
    pinned, first, second = stored
    assert stored.find_oldest(None) == first
    assert stored.find_oldest(first) == second
    assert list(stored) == [first, second, pinned]
    stored.drop(first)
    assert stored.find_oldest(second) == second, "there is no other"
    stored.drop(second)
    assert stored.find_oldest(None) is None
    stored.drop(pinned)
    assert len(stored.pins) == 0


def test_longer_sequence_takes_the_place_of_those_it_begins_with_but_not_of_pinned_ones() -> None:
    replica = Replica(TOY.open(num_pages=40))
    stored = replica.cache.stored
    replica.ask([9, 9, 9], 2)
    replica.run()
    [other] = stored
    for length, pin in ((8, None), (12, Pin(300.0)), (16, None)):
        replica.ask(range(length), 1, pin=pin)
        replica.run()
    first, pinned, longest = stored
    assert (first, pinned in stored.pins, longest in stored.pins) == (other, True, False)
    assert [replica.ledger.length(seq) for seq in (pinned, longest)] == [12, 16]
    replica.ask(range(10), 1)
    replica.run()
    assert list(stored) in ([other, pinned, longest], [other, longest, pinned]), "it is kept already"


def test_sequence_that_cannot_be_rewound_is_kept_beside_longer_ones() -> None:
    replica = Replica(Toy(("full", "window")).open(num_pages=40))
    for length in (8, 16):
        replica.ask(range(length), 1)
        replica.run()
    assert len(list(replica.cache.stored)) == 2


@pytest.mark.parametrize(("owner", "lengths"), [(b"a", [16]), (b"b", [8, 16])])
def test_pin_takes_the_place_of_those_of_its_client_that_it_covers(owner: bytes, lengths: list[int]) -> None:
    replica = Replica(TOY.open(num_pages=40))
    stored = replica.cache.stored
    for length, each in ((8, b"a"), (16, owner)):
        replica.ask(range(length), 1, pin=Pin(300.0, each))
        replica.run()
    assert sorted(replica.ledger.length(seq) for seq in stored) == lengths
    assert all(seq in stored.pins for seq in stored)
