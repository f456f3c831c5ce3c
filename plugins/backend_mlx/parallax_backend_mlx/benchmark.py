"""Measures the speed of a device with the kernels of stages."""

from __future__ import annotations

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.malloc import keep_memory
from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.runtime import BLAS, Linear, Module, QuantizedLinear, mx
from parallax_backend_mlx.transposed_weights import turn_module
from parallax_core.api import DeviceMemory, DevicePlan, DeviceSpeed, Machine, ParallaxError, Unsupported, format_bytes
from parallax_stage_tools.overhead import measure_overhead
from parallax_stage_tools.products import measure_products

SIDE = {"cpu": 2048, "gpu": 4096}
"""Rows and columns of a matrix."""
NUM_MATRICES = 16
"""They take 256 MiB in float32 on a CPU, and 512 MiB in bfloat16 on a GPU: more than the caches hold."""
PREFILL_ROWS = {"gpu": 1024, "fast": 128, "slow": 16}
"""Rows on a GPU, and on a CPU with and without a fast BLAS."""
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
CODES = (4, 8)
"""The bits of codes that are measured on a GPU, where they stay codes, in groups of 64."""
FREE_SHARE = 0.25
"""The share of the free memory that matrices may take."""
OVERHEAD = 0.2
"""The share of the time that steps of tiny stages take."""


class MlxBenchmark:
    """See `parallax_core.api.DeviceBenchmark`."""

    def __init__(self, plan: DevicePlan) -> None:
        """Choose the dtype of a plan, as a stage does.

        Raises:
            Unsupported: if there is no such dtype.
        """
        if plan.dtype not in {"auto", *DTYPES}:
            raise Unsupported(f"there is no dtype {plan.dtype!r}", f"choose auto, {', '.join(DTYPES)}")
        self._plan = plan
        self._is_gpu = mx.default_device() == mx.Device(mx.gpu)
        automatic = "bfloat16" if self._is_gpu else "float32"
        self._dtype = DTYPES[automatic if plan.dtype == "auto" else plan.dtype]
        self.name = str(mx.device_info()["device_name"]) if self._is_gpu else ""

    def read_memory(self) -> DeviceMemory:
        """Return the memory of the device; on a CPU, that of the machine, free within its control groups."""
        total = mx.device_info().get("memory_size", 0) if self._is_gpu else Machine().total_memory()
        return DeviceMemory(int(total), find_room())

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        """Measure products of matrices as layers have them, and steps of tiny stages.

        Raises:
            ParallaxError: if there is too little free memory for a matrix.
        """
        if not self._is_gpu:
            keep_memory()
        kinds, forms = (0, *CODES) if self._is_gpu else (0,), list[tuple[float, float, float]]()
        for bits in kinds:
            matrices = Matrices(self._dtype, bits, is_gpu=self._is_gpu)
            products = measure_products(matrices, limit_s * (1 - OVERHEAD) / len(kinds))
            forms.append((matrices.number_bytes, *products))
            mx.clear_cache()
        overhead = measure_overhead(MlxBackend(), self._plan, limit_s * OVERHEAD)
        _, flops, bandwidth = forms[0]
        measured = tuple(forms) if len(forms) > 1 else ()
        return DeviceSpeed(flops=flops, bandwidth=bandwidth, forms=measured, **overhead._asdict())


class Matrices:
    """See `parallax_stage_tools.products.Products`."""

    def __init__(self, dtype: mx.Dtype, bits: int, *, is_gpu: bool) -> None:
        self._dtype, self._bits, self._side = dtype, bits, SIDE["gpu" if is_gpu else "cpu"]
        self.number_bytes = bits / 8 + 4 / 64 if bits else float(dtype.size)
        self._turns = not is_gpu and dtype == mx.float32
        self.prefill_rows = PREFILL_ROWS["gpu" if is_gpu else "slow" if BLAS.is_slow else "fast"]
        one = self._side**2 * self.number_bytes
        most = int(NUM_MATRICES * dtype.size / self.number_bytes)
        self.num_matrices = min(most, int(find_room() * FREE_SHARE // one))
        self._made: list[Module] = []
        if not self.num_matrices:
            message = f"the benchmark needs {format_bytes(one / FREE_SHARE)} of free memory"
            raise ParallaxError(message, "close other programs")

    def add_matrix(self) -> tuple[int, int]:
        """Make one more matrix."""
        if self._bits:
            self._made.append(QuantizedLinear(self._side, self._side, bias=False, bits=self._bits))
        else:
            layer = Linear(self._side, self._side, bias=False)
            layer.weight = mx.zeros((self._side, self._side), dtype=self._dtype)
            self._made.append((turn_module(layer) if self._turns else None) or layer)
        mx.eval(self._made[-1].parameters())  # type: ignore[no-untyped-call]
        return self._side**2, int(self._side**2 * self.number_bytes)

    def multiply(self, rows: int, num_matrices: int) -> None:
        """Multiply, and wait."""
        x = mx.zeros((1, rows, self._side), dtype=self._dtype)
        mx.eval([matrix(x) for matrix in self._made[:num_matrices]])
