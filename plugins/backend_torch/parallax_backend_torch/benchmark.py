"""Measures the speed of a device with the kernels of stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from parallax_backend_torch.backend import TorchBackend
from parallax_backend_torch.decoder import Decoder
from parallax_backend_torch.devices import choose_device, choose_factory, find_room, free_memory
from parallax_backend_torch.experts import Experts, SoftmaxRoute, build_experts
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.kernels.quantize import Quantized
from parallax_backend_torch.kernels.rows import WeightKind, convert_part
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.mlp import Mixer
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.sizes import KIND_BYTES
from parallax_backend_torch.weights import Weights
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
    read_config,
)
from parallax_stage_tools.overhead import measure_overhead
from parallax_stage_tools.products import measure_products

SIDE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of a matrix."""
NUM_MATRICES = 16
"""In bfloat16 they take 128 MiB on a CPU and 2 GiB on a GPU: more than the caches hold. There are more of codes."""
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
        kinds, forms = self._list_kinds(factory), list[tuple[float, float, float]]()
        for kind in kinds:
            matrices = _Matrices(factory, kind)
            products = measure_products(matrices, limit_s * (1 - OVERHEAD) / len(kinds))
            forms.append((matrices.number_bytes, *products))
            free_memory(self._device)
        overhead = measure_overhead(_Plain(), self._plan, limit_s * OVERHEAD)
        _, flops, bandwidth = forms[0]
        measured = tuple(forms) if len(forms) > 1 else ()
        return DeviceSpeed(flops=flops, bandwidth=bandwidth, forms=measured, **overhead._asdict())

    def _list_kinds(self, factory: LayerFactory) -> list[WeightKind]:
        """Return the form of most matrices, then those in which codes are kept."""
        usual = factory.choose_kind(None, "layer")
        if factory.device.type != "cpu" or not factory.keeps_blocks or self._plan.dtype == "float32":
            return [usual]
        return [usual, "int4", "int8_low"]


class _Plain(TorchBackend):
    """Opens stages of plain layers, or of such with experts, without the adapter of a model."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        blocks = _Sparse if "num_experts" in read_config(plan.model) else Decoder
        return super().open_stage(replace(plan, blocks=blocks))


class _Sparse(Decoder):
    """Plain layers with experts."""

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts."""
        del index
        weights, experts = weights.within("mlp"), build_experts(weights.within("mlp"), self.config.count("num_experts"))
        route = SoftmaxRoute(self.config.count("num_experts_per_tok"), is_normalised=True)
        return Experts(weights.make_linear("gate", purpose="router"), experts, route)


class _Zeros:
    """`Rows` of zeros, converted to a kind once: else quantising takes most of the time."""

    def __init__(self, side: int, kind: WeightKind) -> None:
        self.shape = side, side
        self._kind = kind
        self._parts: dict[int, torch.Tensor | Quantized] = {}

    def read(self, start: int, stop: int) -> torch.Tensor | Quantized:
        """Return some of the rows."""
        num = stop - start
        if num not in self._parts:
            self._parts[num] = convert_part(torch.zeros(num, self.shape[1], dtype=torch.bfloat16), self._kind)
        return self._parts[num]


class _Matrices:
    """See `parallax_stage_tools.products.Products`."""

    def __init__(self, factory: LayerFactory, kind: WeightKind) -> None:
        self._factory, self._kind = factory, kind
        self._side, self.prefill_rows = SIDE[factory.device.type], PREFILL_ROWS[factory.device.type]
        self.number_bytes = KIND_BYTES[kind] if factory.device.type == "cpu" else factory.item_bytes
        one = self._side**2 * self.number_bytes
        room = find_room(factory.device) * FREE_SHARE
        self.num_matrices = min(int(NUM_MATRICES * 2 / self.number_bytes), int(room // one))
        self._rows, self._made = _Zeros(self._side, kind), list[Packed]()
        if not self.num_matrices:
            message = f"the benchmark needs {format_bytes(one / FREE_SHARE)} of free memory"
            raise ParallaxError(message, "close other programs")

    def add_matrix(self) -> tuple[int, int]:
        """Make one more matrix."""
        self._made.append(self._factory.make_linear(self._rows, None, self._kind))
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
