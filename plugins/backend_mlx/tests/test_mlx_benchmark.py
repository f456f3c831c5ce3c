"""The benchmark multiplies matrices as layers keep them; where it runs, its figures are those of the backend."""

from __future__ import annotations

import math
from typing import cast

import pytest

from parallax_backend_mlx import benchmark
from parallax_backend_mlx.benchmark import MlxBenchmark
from parallax_backend_mlx.plugin import parallax_register_backends
from parallax_backend_mlx.runtime import mx
from parallax_core.api import DevicePlan, DType, ParallaxError, Unsupported


def test_device_is_measured() -> None:
    (spec,) = parallax_register_backends()
    assert spec.benchmark
    measured = spec.benchmark.load()(DevicePlan())
    memory, speed = measured.read_memory(), measured.measure_speed(0.2)
    assert 0 < memory.free <= memory.total
    assert all(0 < each < math.inf for each in (speed.flops, speed.bandwidth))
    assert all(0 <= each < 1 for each in (speed.step_s, speed.layer_s))


@pytest.mark.parametrize("bits", benchmark.CODES)
def test_codes_are_multiplied_as_codes(bits: int) -> None:
    matrices = benchmark.Matrices(mx.float32, bits, is_gpu=False)
    assert matrices.add_matrix() == (2048**2, 2048**2 * (bits + 0.5) / 8)
    matrices.multiply(1, 1)
    assert matrices.num_matrices > 16


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(Unsupported, match="float7"):
        MlxBenchmark(DevicePlan(dtype=cast("DType", "float7")))


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "find_room", lambda: 2**20)
    with pytest.raises(ParallaxError, match="free memory"):
        MlxBenchmark(DevicePlan()).measure_speed(0.2)
