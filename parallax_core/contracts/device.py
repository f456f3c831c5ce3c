"""What a backend says of the device that its stages would use: its memory, and its speed as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

DType = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlan:
    """The device to measure, and how stages would use it: these fields are those of `StagePlan`."""

    device: str = ""
    """The device, in the backend's notation; empty: the backend's choice."""
    dtype: DType = "auto"
    """The dtype to compute in; ``auto`` as for stages with weights stored in bfloat16."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the fields of `BackendSpec.options`; empty: the defaults."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device, in bytes."""

    total: int
    """0: unknown."""
    free: int
    """Free for weights, KV cache and activations; on a CPU within the limits of the control groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpeed:
    """The measured speed of a device."""

    flops: float
    """FLOPs per second of products of many rows with a matrix, as in the prefill of a prompt."""
    bandwidth: float
    """Bytes of weights read per second in products of one row with matrices larger than the caches, as in a decode."""
    step_s: float = 0.0
    """Seconds that a step takes besides its layers."""
    layer_s: float = 0.0
    """Seconds that each layer of a step takes besides reading and computing."""
    expert_layer_s: float = 0.0
    """The same of a layer with experts, of which a token meets eight; 0: not measured."""
    forms: tuple[tuple[float, float, float], ...] = ()
    """What weights in one form or another, such as codes of 4 bits, have: bytes of each, ``flops``, ``bandwidth``."""


class DeviceBenchmark(Protocol):
    """Measures a device with the kernels that stages use; `BackendSpec.benchmark` names its factory.

    One and the same thread makes and uses it. A stage may be open on another one, and compute: a benchmark is made and
    reads the memory every few seconds then, and must change nothing that the stage uses, such as the number of threads.
    """

    name: str
    """The product, such as ``NVIDIA GeForce RTX 4090``; empty: the processor."""

    def read_memory(self) -> DeviceMemory:
        """Return the memory of the device now."""

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        """Measure for about ``limit_s`` seconds at most, and release all memory that it took.

        Raises:
            ParallaxError: if the device has too little free memory to be measured, or fails.
        """
