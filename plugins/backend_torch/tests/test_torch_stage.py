"""What a stage does when its computation fails, and what it says of the memory it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parallax_backend_torch import loaded
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.network import Network, Runner
from parallax_backend_torch.stage import StageParts
from parallax_backend_torch.step import Step
from parallax_backend_torch.store import CacheSpec, Store, list_sizes
from parallax_core.api import (
    BackendFailed,
    Copy,
    Draw,
    Drawn,
    Fork,
    Open,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageLost,
    StagePlan,
    Truncate,
)
from tests.support.checkpoints import save_family
from tests.support.torch_backend import TorchBackend

FULL = CacheSpec("full", ((2, 8), (2, 8)))
WINDOW = CacheSpec("window", ((2, 8), (2, 8)), 8)
STATE = CacheSpec("state", ((3, 4), (2, 8, 8)))


SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))


@pytest.mark.parametrize("error", [RuntimeError("out of memory\nand more"), MemoryError("out of memory")])
def test_step_that_fails_leaves_the_stage_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    save_family("qwen2", tmp_path)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    stage.edit([Open(SeqId(1), SPEC)])
    batch = StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),))
    free = stage.step(StageBatch(())).wait().free
    with monkeypatch.context() as patch:
        patch.setattr(Network, "run", fail_with(error))
        for _ in range(2):
            with pytest.raises(BackendFailed, match=f"{type(error).__name__}: out of memory$") as caught:
                stage.step(batch)
            assert caught.value.hint
            assert caught.value.sequences == ()
    assert stage.step(StageBatch(())).wait().free == free
    stage.edit([Fork(SeqId(1), SeqId(2), 0)])
    assert len(stage.step(batch).wait().answers) == 1
    stage.close()


def fail_with(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_interrupted_step_leaves_the_stage_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_family("qwen2", tmp_path)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    stage.edit([Open(SeqId(1), SPEC)])
    batch = StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),))
    with monkeypatch.context() as patch:
        patch.setattr(Network, "run", fail_with(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            stage.step(batch)
    assert len(stage.step(batch).wait().answers) == 1


@pytest.mark.parametrize("what", ["copy", "commit"])
def test_stage_that_may_have_written_half_of_something_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    save_family("qwen2", tmp_path)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    stage.edit([Open(SeqId(1), SPEC)])
    batch = StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),))
    with monkeypatch.context() as patch:
        patch.setattr(*{"copy": (Store, "copy"), "commit": (Step, "commit")}[what], fail_with(RuntimeError("torn")))
        with pytest.raises(StageLost, match="torn"):
            stage.edit([Fork(SeqId(1), SeqId(2), 0)]) if what == "copy" else stage.step(batch)
    with pytest.raises(StageLost, match="torn"):
        stage.step(batch)
    with pytest.raises(StageLost):
        stage.edit([Fork(SeqId(1), SeqId(3), 0)])
    stage.close()


def test_stage_whose_device_is_broken_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_parts(runner: Runner, store: Store, factory: LayerFactory, *rest: Any) -> StageParts:
        on_meta = replace(factory, device=torch.device("meta"))  # it has no numbers to read
        return StageParts(runner, store, on_meta, *rest)

    save_family("qwen2", tmp_path)
    monkeypatch.setattr(loaded, "StageParts", make_parts)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    stage.edit([Open(SeqId(1), SPEC)])
    monkeypatch.setattr(Network, "run", fail_with(RuntimeError("an illegal memory access was encountered")))
    with pytest.raises(StageLost, match="its device failed"):
        stage.step(StageBatch((Row(SeqId(1), 0, (5,), (Draw(0),)),)))
    stage.close()


def test_outputs_of_one_row_are_not_taken_for_those_of_several(tmp_path: Path) -> None:
    save_family("qwen2", tmp_path)
    stage = TorchBackend().open_stage(StagePlan(model=tmp_path, memory_fraction=1e-3))
    for seq in (1, 2):
        stage.edit([Open(SeqId(seq), SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0)))])
    twice = Row(SeqId(2), 0, (7,), (Draw(0, 1, 1), Draw(0, 1, 1)))  # as many outputs as the step has tokens
    result = stage.step(StageBatch((Row(SeqId(1), 0, (5,)), twice))).wait()
    one, other = result.answers
    assert result.sampling_s > 0
    stage.edit([Truncate(SeqId(2), 0)])
    alone = stage.step(StageBatch((Row(SeqId(2), 0, (7,), (Draw(0, 1, 1),)),))).wait().answers[0]
    assert isinstance(one, Drawn)
    assert isinstance(alone, Drawn)
    assert one == other
    assert one.logprobs == pytest.approx(alone.logprobs)


def test_sizes_are_those_of_all_layers_together() -> None:
    layers = [FULL, WINDOW, WINDOW, STATE]
    assert list_sizes(layers) == {
        ("full", 0): FULL.num_bytes,
        ("window", 8): 2 * WINDOW.num_bytes,
        ("state", 0): STATE.num_bytes,
    }


def test_tokens_that_share_a_slot_are_copied_with_their_page() -> None:
    far = CacheSpec("latent", ((1, 8),), stride=4)
    layer = replace(WINDOW, beside=far)
    assert list_sizes([layer, WINDOW]) == {("window", 8): 2 * WINDOW.num_bytes, ("latent", 0): 8}
    infos = [PoolInfo(kind=kind, page_size=4, num_pages=4, window=window) for kind, window in list_sizes([layer])]
    store = Store([layer], infos, torch.device("cpu"))
    [near, entries] = store.layers[0]
    assert (near.pool, entries.pool, len(near.tensors[0]), len(entries.tensors[0])) == (0, 1, 16, 4)
    entries.tensors[0].copy_(torch.arange(4).float()[:, None, None].expand(4, 1, 8))
    store.copy([[], [Copy(1, 3, 2)]])
    assert entries.tensors[0][:, 0, 0].tolist() == [0, 1, 2, 1]


def test_copies_of_one_edit_are_made_at_once() -> None:
    info = PoolInfo(kind="full", page_size=4, num_pages=4)
    store = Store([FULL, FULL], [info], torch.device("cpu"))
    for layer, [kept] in enumerate(store.layers):
        for tensor in kept.tensors:
            tensor.copy_(torch.arange(16).float()[:, None, None].expand(16, 2, 8) + 100 * layer)
    store.copy([[Copy(0, 2, 4), Copy(1, 3, 2)]])
    for layer, [kept] in enumerate(store.layers):
        for tensor in kept.tensors:
            assert (tensor[:, 0, 0] - 100 * layer).tolist() == [*range(8), *range(8)]
