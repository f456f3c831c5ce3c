"""What a stage does when its computation fails, and what it says of the memory it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallax_backend_torch.backend import TorchBackend
from parallax_backend_torch.budget import Room, plan_pools
from parallax_backend_torch.network import Network
from parallax_backend_torch.store import Kept, Store
from parallax_core.api import (
    Copy,
    Draw,
    Fork,
    Open,
    ParallaxError,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageLost,
    StagePlan,
)
from tests.checkpoints import save_family

FULL = Kept("full", ((2, 8), (2, 8)))
WINDOW = Kept("window", ((2, 8), (2, 8)), 8)
STATE = Kept("state", ((3, 4), (2, 8, 8)))


def test_stage_whose_step_fails_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_family("qwen2", tmp_path)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    spec = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
    stage.edit([Open(SeqId(1), spec)])
    batch = StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),))

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Network, "run", fail)
    for _ in range(2):
        with pytest.raises(StageLost, match="out of memory") as caught:
            stage.step(batch)
        assert caught.value.hint
    with pytest.raises(StageLost):
        stage.edit([Fork(SeqId(1), SeqId(2), 0)])
    stage.close()


def test_pools_share_the_memory_out() -> None:
    layers = [FULL, WINDOW, WINDOW, STATE]
    room = Room(2**22, 4096, 128)
    pools = plan_pools(layers, room)
    assert [(pool.kind, pool.window) for pool in pools] == [("full", 0), ("window", 8), ("state", 0)]
    sizes = {"full": FULL.num_bytes * 16, "window": 2 * WINDOW.num_bytes * 16, "state": STATE.num_bytes}
    assert sum(pool.num_pages * sizes[pool.kind] for pool in pools) <= room.num_bytes
    assert min(pool.num_pages for pool in pools) >= 8


def test_short_windows_take_no_more_than_they_can_use() -> None:
    [pool] = plan_pools([WINDOW], Room(2**33, 2**20, 64))
    assert pool.num_pages == 256 * -(-(8 + 64 + 64 + 16) // 16)


def test_too_little_memory_is_an_error_with_both_figures() -> None:
    with pytest.raises(ParallaxError, match="takes 2 KiB, and there are 100 bytes"):
        plan_pools([FULL], Room(100, 4096, 128))


def test_copies_of_one_edit_are_made_at_once() -> None:
    info = PoolInfo(kind="full", page_size=4, num_pages=4)
    store = Store([FULL, FULL], [info], torch.device("cpu"))
    for layer, tensors in enumerate(store.tensors):
        for tensor in tensors:
            tensor.copy_(torch.arange(16).float()[:, None, None].expand(16, 2, 8) + 100 * layer)
    store.copy([[Copy(0, 2, 4), Copy(1, 3, 2)]])
    for layer, tensors in enumerate(store.tensors):
        for tensor in tensors:
            assert (tensor[:, 0, 0] - 100 * layer).tolist() == [*range(8), *range(8)]
