from __future__ import annotations

import pytest

from parallax_core.api import (
    Account,
    Drop,
    Fork,
    LayerRange,
    Open,
    OutOfPages,
    PagePool,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    Truncate,
)

A, B = SeqId(1), SeqId(2)
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling())


def make_account(*pages: int) -> Account:
    info = StageInfo(
        layers=LayerRange(0, 1),
        num_layers=1,
        vocab_size=10,
        context_length=64,
        max_batch_tokens=16,
        pools=tuple(PoolInfo(kind="full", page_size=4, num_pages=number) for number in pages),
        device="none",
        dtype="float32",
        weight_bytes=0,
        weights_version="1",
    )
    account = Account(info)
    account.edit(Open(A, SPEC))
    return account


def run(account: Account, seq: SeqId, *tokens: int) -> None:
    account.step(StageBatch((Row(seq, len(account.entries[seq].tokens), tokens),)))


def test_account_keeps_the_tokens_of_each_sequence() -> None:
    account = make_account(4)
    run(account, A, 1, 2, 3)
    account.edit(Fork(A, B, 2, choice=3))
    run(account, B, 7)
    account.edit(Truncate(A, 1))
    assert [account.entries[seq].tokens for seq in (A, B)] == [[1], [1, 2, 7]]
    assert (account.entries[B].spec, account.entries[B].choice) == (SPEC, 3)
    account.edit(Drop(A))
    assert list(account.entries) == [B]
    assert account.free == (3,)


def test_fork_without_a_page_in_one_pool_takes_none_in_another() -> None:
    account = make_account(4, 1)
    run(account, A, 1, 2)
    with pytest.raises(OutOfPages):
        account.edit(Fork(A, B, 1))
    assert account.free == (3, 0)
    assert list(account.entries) == [A]


def test_step_without_pages_changes_nothing() -> None:
    account = make_account(4, 1)
    with pytest.raises(OutOfPages):
        run(account, A, 1, 2, 3, 4, 5)
    assert account.free == (4, 1)
    assert account.entries[A].tokens == []


def test_nearly_full_pool_is_not_copied_to_see_whether_a_step_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pool: PagePool, memo: object) -> PagePool:
        raise AssertionError("a pool is copied")

    monkeypatch.setattr(PagePool, "__deepcopy__", refuse, raising=False)
    account = make_account(2)
    account.edit(Open(B, SPEC))
    run(account, A, 1, 2, 3, 4)
    with pytest.raises(OutOfPages) as caught:
        account.step(StageBatch((Row(A, 4, (1,)), Row(B, 0, (1,)))))
    assert (caught.value.needed, caught.value.free) == (1, 0)
    assert account.free == (1,)


def test_refused_row_moves_no_other() -> None:
    account = make_account(4)
    with pytest.raises(KeyError):
        account.step(StageBatch((Row(A, 0, (1,)), Row(B, 0, (1,)))))
    assert account.free == (4,)
    assert account.entries[A].tokens == []


def test_copies_are_those_of_the_pools() -> None:
    account = make_account(4, 4)
    run(account, A, 1, 2, 3, 4, 5, 6)
    copies = account.edit(Fork(A, B, 6))
    assert [[copy.num_slots for copy in each] for each in copies] == [[2], [2]]
    account.edit(Truncate(A, 3))
    account.edit(Drop(B))
    assert account.step(StageBatch((Row(A, 3, (9,)),))) == [[], []]


def test_step_is_taken_back_with_its_tokens_and_pages() -> None:
    account = make_account(8, 6)
    account.edit(Open(B, SPEC))
    run(account, A, 1, 2, 3)
    account.edit(Fork(A, SeqId(3), 2))
    free = account.free
    rows = (Row(A, 3, (4, 5)), Row(B, 0, (6, 7, 8, 9, 9)), Row(SeqId(3), 2, (1,)))
    restore = account.save(rows)
    account.step(StageBatch(rows))
    assert account.free != free
    restore()
    assert account.free == free
    assert [account.entries[seq].tokens for seq in (A, B, SeqId(3))] == [[1, 2, 3], [], [1, 2]]
    account.step(StageBatch(rows))
    assert account.entries[A].tokens == [1, 2, 3, 4, 5]
    for pool in account.pools:
        pool.check()


def test_saving_rows_that_a_step_refuses_changes_nothing() -> None:
    account = make_account(4)
    run(account, A, 1, 2)
    rows = (Row(A, 2, (3,)), Row(B, 0, (1,)))
    restore = account.save(rows)
    with pytest.raises(KeyError, match="not open"):
        account.step(StageBatch(rows))
    restore()
    assert account.entries[A].tokens == [1, 2]
    account.pools[0].check()
