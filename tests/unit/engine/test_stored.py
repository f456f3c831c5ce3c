from __future__ import annotations

from parallax_core.contracts.engine import Pin
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
