"""Measures the speed of a device with the kernels of stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from parallax_backend_torch.backend import TorchBackend
from parallax_backend_torch.decoder import Decoder
from parallax_backend_torch.devices import choose_device, choose_factory, find_room, free_memory
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.kernels.rows import TensorRows
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.settings import TorchSettings
from parallax_core.api import (
    DeviceMemory,
    DevicePlan,
    DeviceSpeed,
    Machine,
    ParallaxError,
    Stage,
    StagePlan,
    Tensor,
    format_bytes,
)
from parallax_stage_tools.overhead import measure_overhead
from parallax_stage_tools.products import measure_products

SIDE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of a matrix."""
NUM_MATRICES = 16
"""In bfloat16 they take 128 MiB on a CPU and 2 GiB on a GPU: more than the caches hold."""
PREFILL_ROWS = {"cpu": 128, "cuda": 2048}
FREE_SHARE = 0.25
"""The share of the free memory that matrices may take."""
OVERHEAD = 0.2
"""The share of the time that steps of tiny stages take."""


class TorchBenchmark:
    """See `parallax_core.api.DeviceBenchmark`."""

    def __init__(self, plan: DevicePlan) -> None:
        """Choose the device of a plan, as a stage does.

        Raises:
            Unsupported: if there is no such device, or it does not support the dtype.
        """
        self._plan = plan
        self._settings = TorchSettings(**plan.options)
        self._stage = StagePlan(model=Path(), dtype=plan.dtype, device=plan.device, options=plan.options)
        self._device = choose_device(self._stage)
        self.name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else ""

    def read_memory(self) -> DeviceMemory:
        """Return the memory of the device; on a CPU, that of the machine, free within its control groups."""
        device = self._device
        total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else Machine().total_memory()
        return DeviceMemory(int(total), find_room(device))

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        """Measure products of matrices as layers have them, and steps of tiny stages.

        Raises:
            ParallaxError: if there is too little free memory for a matrix.
        """
        factory = choose_factory(self._stage, self._settings, [Tensor("bfloat16", (1, 1), bytes(2))])
        products = measure_products(_Matrices(factory), limit_s * (1 - OVERHEAD))
        free_memory(self._device)
        overhead = measure_overhead(_Plain(), self._plan, limit_s * OVERHEAD)
        return DeviceSpeed(
            flops=products.flops, bandwidth=products.bandwidth, step_s=overhead.step_s, layer_s=overhead.layer_s
        )


class _Plain(TorchBackend):
    """Opens stages of plain layers, without the adapter of a model."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        return super().open_stage(replace(plan, blocks=Decoder))


class _Matrices:
    """See `parallax_stage_tools.products.Products`."""

    def __init__(self, factory: LayerFactory) -> None:
        self._factory = factory
        self._side, self.prefill_rows = SIDE[factory.device.type], PREFILL_ROWS[factory.device.type]
        one = self._side**2 * factory.item_bytes
        room = find_room(factory.device) * FREE_SHARE
        self.num_matrices = min(NUM_MATRICES, int(room // one))
        self._made: list[Packed] = []
        if not self.num_matrices:
            message = f"the benchmark needs {format_bytes(one / FREE_SHARE)} of free memory"
            raise ParallaxError(message, "close other programs")

    def add_matrix(self) -> tuple[int, int]:
        """Make one more matrix."""
        rows = TensorRows(torch.zeros(self._side, self._side, dtype=torch.bfloat16))
        kind = self._factory.choose_kind(None, "layer")
        self._made.append(self._factory.make_linear(rows, None, kind))
        return self._side**2, self._made[-1].num_bytes

    def multiply(self, rows: int, num_matrices: int) -> None:
        """Multiply, and wait."""
        device = self._factory.device
        x = torch.zeros(rows, self._side, device=device, dtype=self._factory.dtype)
        with torch.inference_mode():
            for matrix in self._made[:num_matrices]:
                matrix.apply(x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
