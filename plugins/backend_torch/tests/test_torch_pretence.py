"""On a device that is pretended to be CUDA: everything moves there and back, and nothing of the CPU's is used on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from parallax_core.api import LayerRange, Stage, StagePlan
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.draw import DrawChecks
from parallax_core.testing.checks.penalty import PenaltyChecks
from tests.support.checkpoints import FAMILIES, LAYERS, save_family
from tests.support.families import TOLERANCE, Family, Trial, run_chunks, run_ragged
from tests.support.pretence import DEVICE, DeviceTensor, Pretence, Recorder, pretend_device
from tests.support.torch_backend import TorchBackend

ROOM = 2**21
LENGTH = 24
COARSE = 0.2
"""What eight bits of a number lose in random models, as a share of the largest logit; a wrong model gives more."""


@pytest.fixture(autouse=True)
def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, ROOM)


OFTEN = ("llama", "gemma3_text", "qwen3_next")
"""The families of each kind of memory; the others run nightly."""


def run_trial(family: Family, plans: list[StagePlan]) -> float:
    """Return the largest error of a prompt in chunks, and of prompts beside decodes."""
    with Pretence(), Chain([family.backend.open_stage(plan) for plan in plans]) as chain:
        assert chain.first.device == "CUDA (pretended)"
        trial = Trial(family, chain)
        run_chunks(trial, LENGTH, 7)
        run_ragged(trial, LENGTH)
    return trial.find_error()


@pytest.mark.parametrize(
    "kind",
    [each if each in OFTEN else pytest.param(each, marks=pytest.mark.nightly) for each in FAMILIES],
)
def test_families_need_nothing_of_the_cpu(kind: str, tmp_path: Path) -> None:
    halves = [LayerRange(0, LAYERS // 2), LayerRange(LAYERS // 2, LAYERS)]
    plans = [StagePlan(model=tmp_path, layers=each, dtype="float32") for each in halves]
    assert run_trial(Family(kind, tmp_path, TorchBackend()), plans) < 2 * TOLERANCE


@pytest.mark.parametrize("kind", ["gemma3_text", "granite", "smollm3", "glm4"])
def test_families_run_in_half_the_bits(kind: str, tmp_path: Path) -> None:
    assert run_trial(Family(kind, tmp_path, TorchBackend()), [StagePlan(model=tmp_path, dtype="bfloat16")]) < COARSE


def test_heads_that_share_keys_see_them_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`enable_gqa` with a mask would keep the scores of all heads in float32."""
    attend, calls = torch.nn.functional.scaled_dot_product_attention, []

    def note(*args: torch.Tensor, **options: object) -> torch.Tensor:
        if isinstance(args[0], DeviceTensor):  # the model that it is compared with is on the CPU
            calls.append((args, options))
        found: torch.Tensor = attend(*args, **options)
        return found

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", note)
    run_trial(Family("llama", tmp_path, TorchBackend()), [StagePlan(model=tmp_path, dtype="float32")])
    assert not any("enable_gqa" in options for _, options in calls)
    chunks = [args for args, _ in calls if args[1].stride(1) == 0]
    assert len(chunks) >= LAYERS
    for query, keys, values, mask in chunks:
        assert values.stride(1) == 0
        assert mask.shape == (1, 1, query.shape[2], keys.shape[2])


def test_pretence_lets_nothing_mix() -> None:
    with Pretence():
        here, there = torch.ones(2), torch.ones(2, device=DEVICE)
        with pytest.raises(RuntimeError, match="others of"):
            here + there
        with pytest.raises(RuntimeError, match="data_ptr"):
            there.data_ptr()
        assert (there + here.to(DEVICE)).cpu().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x * x.sum().item(),
        lambda x: x * torch.ones(2).to(DEVICE),
        lambda x: x * torch.tensor([1.0, 2.0], device=DEVICE),
        lambda x: x[[0, 1]],
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: torch.bincount(x.long()),
    ],
)
def test_recorder_refuses_what_cannot_be_recorded(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with Pretence():
        x = torch.ones(2, device=DEVICE)
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            Recorder().record(lambda: work(x))
        recorder = Recorder()
        found = recorder.record(lambda: x[torch.arange(2, device=DEVICE)] * 2)
        x += 1
        recorder.replay()
        assert isinstance(found, torch.Tensor)
        assert found.tolist() == [4.0, 4.0]


class Sampled(DrawChecks, PenaltyChecks):
    """A stage of a tiny model."""

    exact = False
    margin = 2e-3
    num_layers = LAYERS

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return TorchBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32"))


def test_sampling_needs_nothing_of_the_cpu(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    with Pretence():
        kit = Sampled(tmp_path)
        kit.test_rows_of_a_batch_have_their_own_sampling()
        kit.test_tiny_top_p_and_full_min_p_take_the_best()
        kit.test_count_draws_what_forks_with_choices_draw()
        kit.test_penalties_hold_for_chunks_and_decodes()
        kit.test_min_tokens_holds_back_the_stop_tokens()
        kit.test_bias_is_added()
