"""A backend that loads the toy from a model folder in the standard layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from parallax_core.api import (
    BackendSpec,
    DeviceMemory,
    DevicePlan,
    DeviceSpeed,
    LayerRange,
    ParallaxError,
    Ref,
    Stage,
    StagePlan,
    Unsupported,
    read_object,
    read_tensors,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.model import write_checkpoint
from parallax_core.testing.toy import Toy

KINDS: tuple[PoolKind, ...] = ("full", "window", "full")
TASK = "loading weights"
WEIGHTS = 4096
"""Bytes of all weights."""
ROOM = 100_000
"""Pages that fit into the whole memory."""


def write_model(folder: Path) -> Path:
    """Write a model: a config, and weights with a size but no meaning."""
    config = {"architectures": ["ToyForCausalLM"], "model_type": "toy", "layers": list(KINDS)}
    return write_checkpoint(folder, config, {f"layers.{index}.w": (WEIGHTS // 16,) for index in range(4)})


class ToyBackend:
    """Opens stages of the toy; subclasses override single steps to plant faults."""

    def open_stage(self, plan: StagePlan) -> Stage:
        config = self.read_config(plan)
        if config.get("model_type") != "toy":
            raise Unsupported(f"the toy cannot be a {config.get('model_type')}", "choose another backend")
        if plan.dtype not in self.list_dtypes():
            raise Unsupported(f"the toy has no dtype {plan.dtype}", "leave it out")
        if plan.device not in {"", "toy"}:
            raise ParallaxError(f"the toy does not run on {plan.device}", "leave the device out")
        self.load_weights(plan)
        kinds = cast("tuple[PoolKind, ...]", tuple(config["layers"]))
        pages, layers = self.count_pages(plan), self.choose_layers(plan, len(kinds))
        if plan.leased:
            return self.open_leased(Toy(kinds), layers, pages)
        return Toy(kinds).open(layers, num_pages=pages, context=64)

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        return toy.open_leased(layers, num_pages=pages, context=64)

    def list_dtypes(self) -> set[str]:
        return {"auto", "float32"}

    def read_config(self, plan: StagePlan) -> dict[str, Any]:
        try:
            return read_object(plan.model / "config.json")
        except FileNotFoundError as error:
            raise ParallaxError(f"there is no model in {plan.model}", "name its folder") from error

    def load_weights(self, plan: StagePlan) -> None:
        for _ in read_tensors(plan.model, lambda _: True, plan.progress):
            pass

    def count_pages(self, plan: StagePlan) -> int:
        pages = int(ROOM * plan.memory_fraction)
        if pages < 1:
            raise ParallaxError("no page fits into the memory that is free", "close other programs")
        return pages

    def choose_layers(self, plan: StagePlan, num_layers: int) -> LayerRange:
        layers = plan.layers or LayerRange(0, num_layers)
        if plan.layers is not None and not 0 <= plan.layers.start < plan.layers.stop <= num_layers:
            raise ParallaxError(f"the model has {num_layers} layers", f"ask for some of 0-{num_layers}")
        return layers


class ToyBenchmark:
    """Knows its figures; subclasses plant faults."""

    name = "abacus"
    memory = DeviceMemory(2**20, 2**19)
    speed = DeviceSpeed(flops=1e9, bandwidth=1e9)

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan

    def read_memory(self) -> DeviceMemory:
        return self.memory

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        del limit_s
        return self.speed


SPEC = BackendSpec(
    name="toy",
    summary="integers in place of tensors",
    probe=Ref("tests.conformance.toyprobe:probe_machine"),
    factory=Ref("tests.conformance.toybackend:ToyBackend"),
    benchmark=Ref("tests.conformance.toybackend:ToyBenchmark"),
    leases=True,
)
