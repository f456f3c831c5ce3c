from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallax_core.api import BackendFailed, DevicePlan, LayerRange, StagePlan, read_tensors, silent
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_stage_tools.overhead import EXPERTS, MANY, measure_overhead, write_llama


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SleepBackend:
    """Opens stages that sleep a millisecond, and half of one for each layer, or two with experts; they close."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.open: list[SleepStage] = []
        self.plans: list[StagePlan] = []

    def open_stage(self, plan: StagePlan) -> SleepStage:
        config = json.loads((plan.model / "config.json").read_bytes())
        layers, each_s = config["num_hidden_layers"], 2e-3 if "num_experts" in config else 5e-4
        info = describe_sleeper(LayerRange(0, layers), layers)
        self.plans.append(plan)
        self.open.append(SleepStage(info, lambda _: 1e-3 + layers * each_s, self.clock.sleep))
        return self.open[-1]


def test_overhead_of_steps_and_layers_is_told_apart() -> None:
    clock = Clock()
    backend = SleepBackend(clock)
    found = measure_overhead(backend, DevicePlan(device="x", dtype="float32"), 1.0, clock)
    assert found == pytest.approx((1e-3, 5e-4, 2e-3))
    assert {(plan.device, plan.dtype) for plan in backend.plans} == {("x", "float32")}
    for stage in backend.open:
        with pytest.raises(BackendFailed, match="closed"):
            stage.edit([])


def test_slow_steps_end_in_time() -> None:
    clock = Clock()
    measure_overhead(SleepBackend(clock), DevicePlan(), 0.05, clock)
    assert clock.now < 0.2


def test_model_has_all_tensors_of_its_layers(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "llama", MANY)
    tensors = dict(read_tensors(model, lambda _: True, silent))
    assert len(tensors) == 2 + 9 * MANY
    assert tensors["model.layers.7.mlp.down_proj.weight"].shape == (64, 128)


def test_model_with_experts_has_all_tensors_of_its_layers(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "experts", MANY, EXPERTS)
    tensors = dict(read_tensors(model, lambda _: True, silent))
    assert len(tensors) == 2 + (9 + 3 * EXPERTS) * MANY
    assert tensors["model.layers.7.mlp.experts.15.down_proj.weight"].shape == (64, 32)
    assert tensors["model.layers.0.mlp.gate.weight"].shape == (EXPERTS, 64)
