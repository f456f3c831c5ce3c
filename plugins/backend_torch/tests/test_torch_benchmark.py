"""The benchmark refuses what it cannot measure; the kit of backends checks its figures."""

from __future__ import annotations

import pytest

from parallax_backend_torch import benchmark, devices
from parallax_backend_torch.benchmark import TorchBenchmark
from parallax_backend_torch.sizes import KIND_BYTES
from parallax_core.api import DevicePlan, ParallaxError, Unsupported


def test_unknown_device_is_refused() -> None:
    with pytest.raises(Unsupported):
        TorchBenchmark(DevicePlan(device="no-such-device"))


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "find_room", lambda device: 2**20)
    with pytest.raises(ParallaxError, match="free memory"):
        TorchBenchmark(DevicePlan(device="cpu")).measure_speed(0.2)


def test_quantized_weights_are_measured_as_such() -> None:
    measured = TorchBenchmark(DevicePlan(device="cpu", options={"weights": "int8"})).measure_speed(0.2)
    assert measured.bandwidth > 0


def test_forms_that_a_cpu_keeps_are_measured() -> None:
    measured = TorchBenchmark(DevicePlan(device="cpu")).measure_speed(0.5)
    sizes = [form[0] for form in measured.forms]
    assert sizes[1:] == [KIND_BYTES["int4"], KIND_BYTES["int8_low"]]
    assert measured.forms[0][1:] == (measured.flops, measured.bandwidth)
    assert all(flops > 0 and bandwidth > 0 for _, flops, bandwidth in measured.forms)
    assert measured.expert_layer_s >= measured.layer_s


def test_one_form_is_measured_where_all_become_that() -> None:
    assert TorchBenchmark(DevicePlan(device="cpu", dtype="float32")).measure_speed(0.2).forms == ()


def test_memory_is_read_without_touching_the_threads_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[int]()
    monkeypatch.setattr(devices, "start_threads", started.append)
    measuring = TorchBenchmark(DevicePlan(device="cpu"))
    assert measuring.read_memory().free > 0
    assert started == []
    measuring.measure_speed(0.1)
    assert started
