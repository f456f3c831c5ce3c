from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from parallax_cluster.node.profile import device
from parallax_cluster.node.profile.device import LIMIT_S, MachineProfile, measure_machine
from parallax_cluster.node.profile.vendors import Gpu
from parallax_core.api import BackendSpec, DeviceMemory, DevicePlan, DeviceSpeed, Ref, hookimpl
from parallax_core.base.errors import ParallaxError
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


class CountingBenchmark:
    name = "abacus"
    memory = DeviceMemory(2**30, 2**29)
    limits: ClassVar[list[float]] = []

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan

    def read_memory(self) -> DeviceMemory:
        return self.memory

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        self.limits.append(limit_s)
        return DeviceSpeed(flops=1e12, bandwidth=1e10, step_s=1e-3, layer_s=1e-5)


SPEC = BackendSpec(
    name="beads",
    summary="s",
    probe=Ref("no:thing"),
    factory=Ref("no:thing"),
    benchmark=Ref(f"{__name__}:CountingBenchmark"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    CountingBenchmark.limits.clear()
    yield
    CountingBenchmark.memory = DeviceMemory(2**30, 2**29)


def measure(spec: BackendSpec = SPEC, plan: DevicePlan | None = None, *, renew: bool = False) -> MachineProfile:
    module = types.SimpleNamespace(parallax_register_backends=hookimpl(lambda: [spec]))
    record = PluginRecord(name="p", distribution="p", version="1", module="p", state="loaded")
    host = PluginHost([(record, module)])
    return measure_machine(host, host.backends().get(spec.name), plan or DevicePlan(), renew=renew)


def test_profile_is_measured_once_and_memory_read_each_time() -> None:
    found = measure()
    assert found.device.is_measured
    assert (found.device.flops, found.device.bandwidth, found.device.step_s) == (1e12, 1e10, 1e-3)
    assert (found.device.name, found.device.memory, found.device.total_memory) == ("abacus", 2**29, 2**30)
    assert found.disk_bandwidth > 0
    CountingBenchmark.memory = DeviceMemory(2**30, 2**20)
    again = measure()
    assert CountingBenchmark.limits == [LIMIT_S]
    assert again.device == replace(found.device, memory=2**20)
    assert again.disk_bandwidth == found.disk_bandwidth


def test_other_plan_and_renewal_are_measured_again() -> None:
    measure()
    measure(plan=DevicePlan(dtype="float32"))
    measure(plan=DevicePlan(options={"weights": "int8"}))
    measure(renew=True)
    assert len(CountingBenchmark.limits) == 4


def test_backend_without_a_benchmark_has_the_typical_figures_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu("something new", 1, 1), Gpu("NVIDIA GeForce RTX 4090", 24 * 10**9, 20 * 10**9)]
    monkeypatch.setattr(device, "find_gpus", lambda: gpus)
    found = measure(replace(SPEC, benchmark=None)).device
    assert (found.name, found.memory, found.total_memory) == ("NVIDIA GeForce RTX 4090", 20 * 10**9, 24 * 10**9)
    assert (found.bandwidth, found.is_measured) == (1008e9, False)


def test_gpu_without_known_figures_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_gpus", lambda: [Gpu("something new", 1, 1)])
    with pytest.raises(ParallaxError, match="something new are not known") as caught:
        measure(replace(SPEC, benchmark=None))
    assert "nodes file" in caught.value.hint
