"""The limits of a head: derived from its stages unless configured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import LayerRange, PoolInfo, StageInfo, TensorSpec
from parallax_core.contracts.transport import FrameLimits
from parallax_core.engine.limits import MOST_RUNNING, Limits, find_limits
from tests.unit.engine.replica import TOY, Replica

LARGE = PoolInfo(kind="full", page_size=16, num_pages=400_000)
STATE = PoolInfo(kind="state", page_size=1, num_pages=256)
WINDOW = PoolInfo(kind="window", page_size=16, num_pages=2400, window=512, rewind=64)
STAGE = StageInfo(
    layers=LayerRange(0, 1),
    num_layers=1,
    vocab_size=100,
    context_length=8192,
    max_batch_tokens=4096,
    pools=(LARGE,),
    device="none",
    dtype="float32",
    weight_bytes=0,
    weights_version="1",
)


def make_stage(*pools: PoolInfo, tokens: int = 4096, rows: int = 0, context: int = 8192) -> StageInfo:
    return replace(
        STAGE, pools=pools or (LARGE,), max_batch_tokens=tokens, saturation_rows=rows, context_length=context
    )


def make_pool(num_tokens: int) -> PoolInfo:
    return PoolInfo(kind="full", page_size=16, num_pages=num_tokens // 16)


@pytest.mark.parametrize(
    ("stages", "running"),
    [
        ([make_stage()], MOST_RUNNING),
        ([make_stage(rows=256)], 256),
        ([make_stage(rows=64, tokens=297)], 64),
        ([make_stage(tokens=297)], 148),
        ([make_stage(tokens=16, rows=64)], 8),
        ([make_stage(tokens=1)], 1),
        ([make_stage(rows=64), make_stage(rows=64)], 128),
        ([make_stage(rows=64), make_stage(rows=20)], 40),
        ([make_stage(make_pool(200 * 1024))], 200),
        ([make_stage(make_pool(200 * 1024)), make_stage(make_pool(100 * 1024))], 100),
        ([make_stage(make_pool(5 * 1024))], 32),
        ([make_stage(make_pool(160))], 10),
        ([make_stage(make_pool(20 * 1024), context=100)], 182),
        ([make_stage(STATE)], 256),
        ([make_stage(LARGE, replace(STATE, num_pages=5))], 5),
        ([make_stage(LARGE, WINDOW, tokens=128)], 54),
        ([make_stage(LARGE, WINDOW, tokens=4096)], 37),
    ],
)
def test_as_many_run_as_the_stages_are_good_for(stages: list[StageInfo], running: int) -> None:
    assert find_limits(Limits(), stages).max_running == running


@given(
    st.lists(
        st.builds(
            make_stage,
            st.builds(PoolInfo, kind=st.just("full"), page_size=st.integers(1, 64), num_pages=st.integers(1, 2**24)),
            tokens=st.integers(1, 2**20),
            rows=st.integers(0, 2**20),
            context=st.integers(1, 2**20),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_at_least_one_runs_and_each_has_a_page_and_a_place_in_a_step(stages: list[StageInfo]) -> None:
    limits = find_limits(Limits(), stages)
    assert 1 <= limits.max_running <= min(MOST_RUNNING, *(pool.num_pages for stage in stages for pool in stage.pools))
    assert limits.max_batch_tokens == min(stage.max_batch_tokens for stage in stages)
    share = -(-limits.max_running // len(stages))
    assert share <= max(1, limits.max_batch_tokens // 2), "decodes leave nothing of a step to prompts"


def test_twice_as_many_wait_as_run_and_never_few() -> None:
    assert find_limits(Limits(), [make_stage()]).max_waiting == 2 * MOST_RUNNING
    assert find_limits(Limits(), [make_stage(rows=8)]).max_waiting == 256
    assert find_limits(Limits(max_running=500), [make_stage(rows=8)]).max_waiting == 1000


def test_who_says_a_limit_gets_it() -> None:
    limits = find_limits(Limits(max_running=2000, max_waiting=0, max_batch_tokens=100), [make_stage(rows=8)])
    assert (limits.max_running, limits.max_waiting, limits.max_batch_tokens) == (2000, 0, 100)


def test_no_step_holds_more_than_a_stage_computes_whatever_is_said() -> None:
    stages = [make_stage(tokens=300), make_stage(tokens=200)]
    assert find_limits(Limits(max_batch_tokens=1000), stages).max_batch_tokens == 200


def test_hidden_states_of_a_step_fit_into_a_frame() -> None:
    wide = TensorSpec(16_384, "float32")
    first = replace(make_stage(tokens=2**16), gives=(wide,))
    last = replace(make_stage(tokens=2**16), takes=(replace(wide, dtype="bfloat16"),))
    limits, frames = find_limits(Limits(), [first, last]), FrameLimits()
    assert limits.max_batch_tokens * 16_384 * 4 <= frames.frame_bytes - frames.header_bytes
    assert limits.max_batch_tokens > 4000


def test_limits_are_those_of_the_stages_there_are_now() -> None:
    replica = Replica(TOY.open(num_pages=40, max_batch_tokens=8), limits=Limits())
    assert (replica.head.limits.max_running, replica.head.limits.max_batch_tokens) == (4, 8)
    replica.head.restart([TOY.open(num_pages=40, max_batch_tokens=20).info])
    assert (replica.head.limits.max_running, replica.head.limits.max_batch_tokens) == (10, 20)


def test_step_holds_no_more_tokens_than_is_said() -> None:
    replica = Replica(TOY.open(num_pages=40, max_batch_tokens=8), limits=Limits(max_batch_tokens=3))
    for number in range(3):
        replica.ask([number] * 7, 3)
    replica.run()
    replica.check_tokens()
    assert max(sum(len(row.tokens) for row in batch.rows) for batch in replica.stage.batches) == 3
