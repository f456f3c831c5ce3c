from dataclasses import replace

import pytest

from parallax_core.api import Drop, Fork, Open, PoolInfo, Row, Sampling, SeqId, SequenceSpec
from parallax_core.base.errors import OutOfPages
from parallax_core.engine.ledger import Ledger
from tests.unit.engine.replica import TOY

A, B, C = SeqId(1), SeqId(2), SeqId(3)
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling())


def make_ledger(*num_pages: int) -> Ledger:
    return Ledger([TOY.open(num_pages=pages, page_size=4).info for pages in num_pages])


def test_every_stage_has_its_own_pages() -> None:
    ledger = make_ledger(3, 5)
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 5))
    assert ledger.free == ((1,), (3,))
    assert ledger.capacity == 12


def test_stages_of_different_pages_and_sizes_are_each_counted() -> None:
    small, wide = PoolInfo(kind="full", page_size=2, num_pages=7), PoolInfo(kind="full", page_size=8, num_pages=2)
    larger = PoolInfo(kind="full", page_size=2, num_pages=70)
    ledger = Ledger([replace(TOY.open().info, pools=pools) for pools in ((larger,), (small, wide), (wide,))])
    assert (ledger.free, ledger.capacity) == (((70,), (7, 2), (2,)), 14)
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 9))
    assert ledger.free == ((65,), (2, 0), (0,))
    assert not ledger.claim(8).take(A, 6)
    with pytest.raises(OutOfPages):
        ledger.extend(Row(A, 9, (1,) * 6))


def test_claims_add_up_before_anything_is_taken() -> None:
    ledger = make_ledger(3, 5)
    for seq in (A, B):
        ledger.edit(Open(seq, SPEC))
    claim = ledger.claim(8)
    assert claim.take(A, 8)
    assert not claim.take(B, 5)
    assert claim.take(B, 4)
    assert ledger.free == ((3,), (5,))


def test_fork_costs_only_what_it_does_not_share() -> None:
    ledger = make_ledger(3)
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 7))
    assert ledger.claim(8).fits_new(8, 6)
    assert not ledger.claim(8).fits_new(9, 6)
    ledger.edit(Fork(A, B, 6))
    assert ledger.free == ((0,),)
    with pytest.raises(OutOfPages):
        ledger.extend(Row(B, 6, (1,) * 3))
    ledger.edit(Drop(A))
    ledger.check()
    assert ledger.free == ((1,),)


def test_window_and_state_limit_how_far_a_sequence_goes_back() -> None:
    window = PoolInfo(kind="window", page_size=2, num_pages=9, window=4, rewind=1)
    info = replace(TOY.open().info, pools=(PoolInfo(kind="full", page_size=4, num_pages=9), window))
    ledger = Ledger([info])
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 8))
    assert not ledger.is_rewindable
    assert [length for length in range(9) if ledger.can_rewind(A, length)] == [7, 8]
    assert ledger.capacity == 36


def test_fork_takes_no_page_that_a_row_needs_before_another_gives_one_back() -> None:
    window = PoolInfo(kind="window", page_size=2, num_pages=6, window=2)
    ledger = Ledger([replace(TOY.open().info, pools=(window,))])
    for seq in (A, B, C):
        ledger.edit(Open(seq, SPEC))
    for seq in (B, C):
        ledger.extend(Row(seq, 0, (1,) * 3))
    claim = ledger.claim(8)
    assert claim.fits_fork(C, 3)
    assert claim.take(A, 4)
    assert claim.take(B, 1)
    assert ledger.free == ((2,),)
    assert not claim.fits_fork(C, 3)
    assert claim.fits_fork(C, 2)
    ledger.extend(Row(A, 0, (1,) * 4))
    assert ledger.free == ((0,),)
    ledger.extend(Row(B, 3, (1,)))
    assert ledger.free == ((1,),)


def test_fork_takes_all_its_pages_where_none_is_shared() -> None:
    ledger = Ledger([TOY.open(num_pages=4, page_size=4, shares=False).info])
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 8))
    assert ledger.claim(8).fits_fork(A, 8)
    claim = ledger.claim(8)
    assert claim.take(A, 1)
    assert not claim.fits_fork(A, 8)
    assert claim.fits_fork(A, 4)


def test_use_of_every_pool_is_its_pages_that_are_taken() -> None:
    ledger = make_ledger(3, 5)
    ledger.edit(Open(A, SPEC))
    ledger.extend(Row(A, 0, (1,) * 5))
    found = [(use.stage, use.kind, use.used, use.total) for use in ledger.measure_use()]
    assert found == [(0, "full", 2, 3), (1, "full", 2, 5)]
