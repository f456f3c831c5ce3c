"""What a stage on vLLM loads, and what it refuses before vLLM is imported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parallax_backend_vllm import stage_backend, stage_config
from parallax_backend_vllm.settings import VllmSettings
from parallax_backend_vllm.stage_config import check_family, check_plan
from parallax_backend_vllm.stage_group import StageGroup
from parallax_backend_vllm.stage_weights import get_weights, load_stage
from parallax_core.api import LayerRange, ParallaxError, StagePlan, Unsupported
from tests.support.checkpoints import LAYERS, save_family
from tests.support.family_plans import REFUSED, make_plan

PLAN = StagePlan(model=Path("model"))


@pytest.mark.parametrize(
    ("layers", "partition", "rank", "is_first", "is_last"),
    [
        (LayerRange(0, 30), [30], 0, True, True),
        (LayerRange(0, 7), [7, 23], 0, True, False),
        (LayerRange(7, 20), [7, 13, 10], 1, False, False),
        (LayerRange(20, 30), [20, 10], 1, False, True),
    ],
)
def test_group_has_the_layers_of_the_stage_as_its_own_rank(
    layers: LayerRange, partition: list[int], rank: int, is_first: bool, is_last: bool
) -> None:
    group = StageGroup(layers, 30)
    assert (group.partition, group.rank_in_group, group.world_size) == (partition, rank, len(partition))
    assert (group.is_first_rank, group.is_last_rank) == (is_first, is_last)
    assert group.partition[group.rank_in_group] == len(layers)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (VllmSettings(tensor_parallel=2), "tensor_parallel"),
        (VllmSettings(pipeline_parallel=2), "pipeline_parallel"),
        (VllmSettings(enforce_eager="off"), "CUDA graphs"),
        (VllmSettings(max_loras=1), "LoRA"),
    ],
)
def test_option_that_stages_do_not_have_is_refused_by_name(settings: VllmSettings, word: str) -> None:
    with pytest.raises(Unsupported, match=word) as caught:
        check_plan(PLAN, settings)
    assert "--backend vllm" in caught.value.hint
    assert "vllm" not in sys.modules


@pytest.mark.parametrize("family", REFUSED)
def test_family_that_stages_cannot_hold_is_refused_before_anything_is_loaded(tmp_path: Path, family: str) -> None:
    with pytest.raises(Unsupported, match=f"a stage on vLLM cannot hold layers 1-.* of {REFUSED[family]}: "):
        stage_backend.open_stage(make_plan(tmp_path, family, REFUSED[family]), VllmSettings())
    assert "vllm" not in sys.modules


def test_leases_are_refused() -> None:
    with pytest.raises(Unsupported, match="'vllm' cannot be shared by leases") as caught:
        check_plan(replace(PLAN, leased=True), VllmSettings())
    assert "another backend" in caught.value.hint


def test_device_that_this_build_of_vllm_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_config, "is_cpu_build", lambda: True)
    check_plan(StagePlan(model=Path("model"), device="cpu"), VllmSettings())
    with pytest.raises(Unsupported, match="does not run on cuda"):
        check_plan(StagePlan(model=Path("model"), device="cuda"), VllmSettings())


class Registry:
    def is_pp_supported_model(self, architectures: list[str], model: object) -> bool:
        return architectures != ["Whole"]


class Model:
    """The part of vLLM's ``ModelConfig`` that is asked."""

    is_hybrid = is_attention_free = is_encoder_decoder = is_multimodal_model = False
    registry = Registry()

    def __init__(self, name: str, **flags: bool) -> None:
        self.architectures = [name]
        vars(self).update(flags)

    @property
    def model_config(self) -> Model:
        return self


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Model("Whole"), "no support for pipelines"),
        (Model("Hybrid", is_hybrid=True), "recurrent states"),
        (Model("Seeing", is_multimodal_model=True), "other than text"),
    ],
)
def test_family_that_cannot_be_split_is_refused_by_name(model: Model, word: str) -> None:
    with pytest.raises(Unsupported, match=f"{model.architectures[0]}.*{word}|{word}"):
        check_family(model, LayerRange(0, 2), 4)


def test_family_without_pipelines_runs_as_one_stage() -> None:
    check_family(Model("Whole"), LayerRange(0, 4), 4)


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (LayerRange(0, 2), {"embed_tokens", "layers.0", "layers.1", "norm", "lm_head"}),
        (LayerRange(1, 2), {"layers.1"}),
        (LayerRange(2, 4), {"embed_tokens", "layers.2", "layers.3", "norm", "lm_head"}),
    ],
)
def test_stage_reads_its_own_layers(layers: LayerRange, names: set[str], tmp_path: Path) -> None:
    save_family("qwen2", tmp_path)
    with load_stage(StagePlan(model=tmp_path, layers=layers), layers, LAYERS):
        found = {name for name, _ in get_weights().load()}
    shorter = {name.removeprefix("model.") for name in found}
    assert {".".join(name.split(".")[: 2 if name.startswith("layers") else 1]) for name in shorter} == names


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_family("qwen2", tmp_path)
    monkeypatch.setattr(stage_backend, "is_cpu_build", lambda: True)
    plan, layers = StagePlan(model=tmp_path), LayerRange(1, 3)
    monkeypatch.setattr(stage_backend, "_find_room", lambda _: 10**9)
    half, full = (stage_backend._check_room(plan, layers, LAYERS, each) for each in (torch.bfloat16, torch.float32))
    assert 0 < 2 * half == full
    monkeypatch.setattr(stage_backend, "_find_room", lambda _: half)
    assert stage_backend._check_room(plan, layers, LAYERS, torch.bfloat16) == half
    with pytest.raises(ParallaxError, match=r"in layers 1-3 take .* are free"):
        stage_backend._check_room(plan, layers, LAYERS, torch.float32)
