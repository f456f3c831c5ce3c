"""The stage's account of pages is that of a pool to which the same is done."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path

import pytest

from parallax_backend_mlx.cache_layout import read_layout
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.paged_runner import PagedRunner
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Account,
    BackendFailed,
    Draw,
    Drop,
    Edit,
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
    StagePlan,
    Truncate,
)

SPEC = SequenceSpec(prompt_length=4, sampling=Sampling(temperature=0))
ONE, TWO, THREE = SeqId(1), SeqId(2), SeqId(3)
POOL = PoolInfo(kind="full", page_size=4, num_pages=6)
INFO = StageInfo(
    layers=LayerRange(0, 3),
    num_layers=3,
    vocab_size=97,
    context_length=64,
    max_batch_tokens=64,
    pools=(POOL,),
    device="cpu",
    dtype="float32",
    weight_bytes=0,
    weights_version="1",
)


@pytest.fixture(scope="module")
def network(llama: Path) -> Network:
    return Network(load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)[0])


def make_stage(network: Network, pool: PoolInfo, num_reserved: int = 0) -> MlxStage:
    layout, account = read_layout(network), Account(replace(INFO, pools=(pool,)))
    assert layout is not None
    grouping = Grouping(is_batched=True, has_states=False, spare_keys=0)
    runner = PagedRunner(network, layout, account.pools, grouping)
    if num_reserved:
        runner.reserve(num_reserved)
    return MlxStage(account, runner)


@pytest.fixture
def stage(network: Network) -> MlxStage:
    return make_stage(network, POOL)


def run_tokens(stage: MlxStage, **counts: int) -> tuple[int, ...]:
    """Append so many tokens to each sequence, named ``one`` to ``three``, and return the free pages after it."""
    seqs = {"one": ONE, "two": TWO, "three": THREE}
    entries = stage.account.entries
    rows = [Row(seqs[name], len(entries[seqs[name]].tokens), (5,) * count) for name, count in counts.items()]
    return stage.step(StageBatch(tuple(rows))).wait().free


def test_pages_are_taken_and_given_back(stage: MlxStage) -> None:
    stage.edit([Open(ONE, SPEC)])
    assert run_tokens(stage, one=4) == (5,)
    assert run_tokens(stage, one=1) == (4,)
    stage.edit([Fork(ONE, TWO, 5)])
    assert run_tokens(stage, two=3) == (3,)
    stage.edit([Truncate(TWO, 4), Drop(ONE)])
    assert run_tokens(stage, two=1) == (4,)


def test_step_copies_no_pool(network: Network) -> None:
    """Else a step would take the longer the larger the pool is."""
    empty = mx.get_active_memory()
    stage = make_stage(network, PoolInfo(kind="full", page_size=4, num_pages=2**14), num_reserved=2**14)
    stage.edit([Open(ONE, SPEC)])
    run_tokens(stage, one=5)
    before = mx.get_active_memory()
    array = (before - empty) / (2 * network.num_layers)  # the keys or the values of a layer
    mx.reset_peak_memory()
    run_tokens(stage, one=5)
    run_tokens(stage, one=1)
    assert array > 2**20
    assert mx.get_peak_memory() - before < array / 2


def test_step_beyond_the_pool_touches_nothing(stage: MlxStage) -> None:
    stage.edit([Open(ONE, SPEC), Open(TWO, SPEC)])
    run_tokens(stage, one=10, two=3)
    with pytest.raises(OutOfPages) as caught:
        run_tokens(stage, two=1, one=11)
    assert (caught.value.needed, caught.value.free) == (3, 2)
    assert [len(stage.account.entries[seq].tokens) for seq in (ONE, TWO)] == [10, 3]
    assert run_tokens(stage, two=1, one=10) == (0,)


def test_fork_beyond_the_pool_touches_nothing(stage: MlxStage) -> None:
    stage.edit([Open(ONE, SPEC)])
    run_tokens(stage, one=23)
    with pytest.raises(OutOfPages):
        stage.edit([Fork(ONE, TWO, 22)])
    assert TWO not in stage.account.entries
    stage.edit([Fork(ONE, TWO, 20)])
    assert run_tokens(stage, one=1) == (0,)


def test_failed_step_takes_no_pages(stage: MlxStage, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    stage.edit([Open(ONE, SPEC)])
    run_tokens(stage, one=4)
    with monkeypatch.context() as patch:
        patch.setattr(network, "run", fail)
        with pytest.raises(BackendFailed):
            run_tokens(stage, one=9)
    stage.account.pools[0].check()
    assert run_tokens(stage, one=4) == (4,)


def test_failed_step_gives_back_what_it_unshared(
    stage: MlxStage, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences hold one page that is not full, as after a truncation; whoever writes first takes a copy."""

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    stage.edit([Open(ONE, SPEC)])
    run_tokens(stage, one=8)
    stage.edit([Fork(ONE, TWO, 8), Truncate(TWO, 6)])
    before = stage.account.free
    with monkeypatch.context() as patch:
        patch.setattr(network, "run", fail)
        with pytest.raises(BackendFailed):
            run_tokens(stage, two=1)
    stage.account.pools[0].check()
    assert stage.account.free == before == (4,)
    assert run_tokens(stage, two=1) == (3,)


@pytest.mark.parametrize("seed", range(6))
def test_account_equals_a_pool_of_the_head(network: Network, seed: int) -> None:
    """Random edits and steps: what the stage says is free is what a pool says to which the same is done."""
    rng = random.Random(seed)
    info = replace(POOL, num_pages=12)
    stage, pool = make_stage(network, info), PagePool(info)
    refusals = 0
    for number in range(120):
        edit = choose_edit(rng, pool, SeqId(number))
        refusals += apply_both(stage, pool, edit)
        refusals += step_both(stage, pool, rng)
        pool.check()
        assert stage.account.pools[0].num_free == pool.num_free
    assert refusals > 0


def list_open(pool: PagePool) -> list[SeqId]:
    return [SeqId(number) for number in range(200) if SeqId(number) in pool]


def choose_edit(rng: random.Random, pool: PagePool, fresh: SeqId) -> Edit:
    held = list_open(pool)
    if len(held) < 2:
        return Open(fresh, SPEC)
    seq = rng.choice(held)
    length = rng.randint(0, pool.length(seq))
    edits: list[Edit] = [Open(fresh, SPEC), Fork(seq, fresh, length), Truncate(seq, length), Drop(seq)]
    return rng.choice(edits)


def apply_both(stage: MlxStage, pool: PagePool, edit: Edit) -> bool:
    """Apply ``edit`` to both; return whether the pool refuses it, as the stage must then."""
    try:
        pool.edit(edit)
    except OutOfPages:
        with pytest.raises(OutOfPages):
            stage.edit([edit])
        return True
    stage.edit([edit])
    return False


def step_both(stage: MlxStage, pool: PagePool, rng: random.Random) -> bool:
    """Step some sequences; return whether the pool refuses, as the stage must then."""
    held = list_open(pool)
    seqs = rng.sample(held, rng.randint(1, min(6, len(held))))
    rows = [Row(seq, pool.length(seq), (7,) * rng.randint(1, 5), (Draw(0),)) for seq in seqs]
    trial = copy.deepcopy(pool)
    try:
        for row in rows:
            trial.extend(row.seq, len(row.tokens))
    except OutOfPages:
        with pytest.raises(OutOfPages):
            stage.step(StageBatch(tuple(rows)))
        return True
    for row in rows:
        pool.extend(row.seq, len(row.tokens))
    assert stage.step(StageBatch(tuple(rows))).wait().free == (pool.num_free,)
    return False
