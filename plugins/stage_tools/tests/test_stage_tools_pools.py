from __future__ import annotations

import pytest

from parallax_core.api import MOST_PAGES, ParallaxError, PoolKind
from parallax_stage_tools.pools import MOST_SEQUENCES, PAGE_SIZE, Room, plan_pools

FULL, WINDOW, STATE = ("full", 0), ("window", 32), ("state", 0)
SIZES: dict[tuple[PoolKind, int], int] = {("full", 0): 128, ("window", 32): 128, ("state", 0): 128}


@pytest.mark.parametrize("keys", [[FULL], [FULL, WINDOW], [FULL, STATE], [STATE], [WINDOW, STATE, FULL]])
@pytest.mark.parametrize("num_bytes", [100_000, 10_000_000, 10**12])
def test_pools_fit_the_memory(keys: list[tuple[PoolKind, int]], num_bytes: int) -> None:
    pools = plan_pools({key: SIZES[key] for key in keys}, Room(num_bytes, 4096, 128))
    assert [(pool.kind, pool.window) for pool in pools] == keys
    taken = sum(SIZES[pool.kind, pool.window] * pool.page_size * pool.num_pages for pool in pools)
    assert taken <= num_bytes
    assert min(pool.num_pages for pool in pools) >= 1


def test_pool_of_layers_that_keep_nothing_takes_no_memory() -> None:
    empty, state = plan_pools({("full", 0): 0, ("state", 0): 128}, Room(100_000, 4096, 128))
    [alone] = plan_pools({("full", 0): 0}, Room(0, 4096, 128))
    [whole] = plan_pools({("state", 0): 128}, Room(100_000, 4096, 128))
    assert empty.num_pages == alone.num_pages == MOST_SEQUENCES * 4096 // PAGE_SIZE
    assert state == whole


def test_memory_one_pool_has_no_use_for_goes_to_the_others() -> None:
    full, state = plan_pools({("full", 0): 128, ("state", 0): 128}, Room(200_000_000, 4096, 128))
    assert state.num_pages == MOST_SEQUENCES
    assert full.num_pages * PAGE_SIZE * 128 > 0.95 * min(200_000_000, full.num_pages * PAGE_SIZE * 128)
    assert full.num_pages == min(MOST_SEQUENCES * 4096 // PAGE_SIZE, (200_000_000 - 128 * MOST_SEQUENCES) // 2048)


def test_no_pool_runs_dry_long_before_the_others() -> None:
    """Each has room for about as many sequences of ordinary length."""
    window, state, full = plan_pools(
        {("window", 32): 128, ("state", 0): 128, ("full", 0): 128}, Room(20_000_000, 4096, 128)
    )
    sequences = [full.num_pages / 64, window.num_pages / 15, state.num_pages]
    assert max(sequences) - min(sequences) < 2


def test_short_windows_take_no_more_than_they_can_use() -> None:
    [pool] = plan_pools({("window", 8): 64}, Room(2**33, 2**20, 64))
    assert pool.num_pages == MOST_SEQUENCES * -(-(8 + 64 + 64 + 16) // 16)
    assert pool.rewind == 64


def test_no_pool_has_more_pages_than_a_head_takes_account_of() -> None:
    [pool] = plan_pools({("full", 0): 1}, Room(2**50, 2**24, 128))
    assert pool.num_pages == MOST_PAGES


def test_there_are_states_for_as_many_as_run_and_for_what_is_kept() -> None:
    [state] = plan_pools({("state", 0): 128}, Room(2**33, 4096, 128, sequences=1000))
    assert state.num_pages == 2000


def test_too_little_memory_is_an_error_with_both_figures() -> None:
    with pytest.raises(ParallaxError, match="takes 2 KiB, but 100 bytes are free"):
        plan_pools({("full", 0): 128}, Room(100, 4096, 128))


def test_context_without_tokens_is_refused() -> None:
    with pytest.raises(ParallaxError, match="a context of -1 tokens"):
        plan_pools({FULL: 128}, Room(100_000, -1, 128))  # type: ignore[dict-item]
