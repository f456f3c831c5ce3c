import pytest

from parallax_core.api import PoolInfo, SeqId
from parallax_core.engine.ledger import Ledger


def make_ledger() -> Ledger:
    return Ledger(PoolInfo(kind="full", page_size=4, num_pages=3))


def test_ledger_counts_whole_pages() -> None:
    ledger = make_ledger()
    ledger.reserve(SeqId(1), 5)
    assert ledger.free == 1
    assert ledger.can_reserve(4)
    assert not ledger.can_reserve(5)


def test_ledger_gives_back_what_was_reserved() -> None:
    ledger = make_ledger()
    ledger.reserve(SeqId(1), 12)
    ledger.release(SeqId(1))
    assert ledger.free == 3
    with pytest.raises(KeyError):
        ledger.release(SeqId(1))


def test_ledger_refuses_a_second_reservation() -> None:
    ledger = make_ledger()
    ledger.reserve(SeqId(1), 1)
    with pytest.raises(AssertionError, match="twice"):
        ledger.reserve(SeqId(1), 1)


def test_ledger_capacity_is_all_pages() -> None:
    assert make_ledger().capacity == 12
