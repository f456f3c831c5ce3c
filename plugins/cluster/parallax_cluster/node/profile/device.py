"""Measures the device that a backend would use, or finds typical figures of it."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from parallax_cluster.node.profile.disk import measure_disk, read_free
from parallax_cluster.node.profile.hardware import find_gpus, read_processor, read_shared_memory
from parallax_cluster.node.profile.speed_cache import MeasuredSpeed, find_speed, keep_speed, measuring_alone
from parallax_cluster.placement.devices import find_device
from parallax_core.api import (
    BackendSpec,
    DeviceBenchmark,
    DeviceMemory,
    DevicePlan,
    DeviceProfile,
    DeviceSpeed,
    Machine,
    ParallaxError,
    models_folder,
)
from parallax_core.api.deployment import Offer, PluginHost

LIMIT_S = 4.0
"""Seconds that a benchmark takes, and at most about twice that on a slow machine."""
UNKNOWN_DISK = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineProfile:
    """The device of a backend on this machine, and the disk of its models."""

    backend: str
    device: DeviceProfile
    disk_bandwidth: float
    """Bytes per second."""
    disk_free: int
    """Bytes."""


def measure_machine(
    host: PluginHost, offer: Offer[BackendSpec], plan: DevicePlan, *, renew: bool = False
) -> MachineProfile:
    """Return this machine's profile with a backend. Takes some seconds the first time; later reads memory only.

    It imports the framework of the backend. Speeds are cached by machine, backend, versions, device and dtype.

    Args:
        host: the plugins, which know the options of the backend.
        offer: the backend.
        plan: its device and dtype; its options override the configured ones.
        renew: measure again, whatever the cache has.

    Raises:
        ParallaxError: if the backend cannot measure and the figures of the device are not known, or if measuring fails.
    """
    if offer.spec.benchmark is None:
        return _describe_typical(offer.spec.name)
    benchmark, key = _prepare(host, offer, plan)
    with measuring_alone():
        measured = None if renew else find_speed(key)
        if measured is None:
            measured = MeasuredSpeed(key, benchmark.measure_speed(LIMIT_S), _measure_disk(models_folder()))
            keep_speed(measured)
    return _describe_measured(offer.spec.name, benchmark, measured)


def find_machine(host: PluginHost, offer: Offer[BackendSpec], plan: DevicePlan) -> MachineProfile | None:
    """Return what `measure_machine` does if nothing has to be measured for it; None otherwise.

    Raises:
        ParallaxError: if the backend cannot measure and the figures of the device are not known.
    """
    if offer.spec.benchmark is None:
        return _describe_typical(offer.spec.name)
    benchmark, key = _prepare(host, offer, plan)
    measured = find_speed(key)
    return _describe_measured(offer.spec.name, benchmark, measured) if measured else None


def make_device(name: str, memory: DeviceMemory, speed: DeviceSpeed) -> DeviceProfile:
    """Return a measured profile; its efficiencies are 1, since the kernels of layers were measured."""
    return DeviceProfile(
        memory=memory.free,
        flops=speed.flops,
        bandwidth=speed.bandwidth,
        step_s=speed.step_s,
        layer_s=speed.layer_s,
        expert_layer_s=speed.expert_layer_s,
        forms=speed.forms,
        name=name,
        total_memory=memory.total,
        is_measured=True,
    )


def find_typical(backend: str) -> DeviceProfile:
    """Return the typical profile of the first GPU here whose figures are known, with the memory that it has free.

    Raises:
        ParallaxError: if there is none.
    """
    gpus = find_gpus()
    for gpu in gpus:
        if known := find_device(gpu.name):
            return replace(known, memory=gpu.free or known.memory, total_memory=gpu.total, name=gpu.name)
    found = ", ".join(gpu.name for gpu in gpus) or "no GPU"
    message = f"backend {backend!r} does not measure devices, and the figures of {found} are not known"
    raise ParallaxError(message, "give tflops, bandwidth_gb_s and memory_gb in a nodes file, or use --backend torch")


def _prepare(host: PluginHost, offer: Offer[BackendSpec], plan: DevicePlan) -> tuple[DeviceBenchmark, list[str]]:
    """Return the benchmark of a backend, and the key of its speed in the cache."""
    assert offer.spec.benchmark is not None, "it was asked for"
    plan = replace(plan, options={**host.read_options(offer), **plan.options})
    benchmark = offer.load(offer.spec.benchmark)(plan)
    return benchmark, _make_key(offer, plan, benchmark)


def _describe_typical(backend: str) -> MachineProfile:
    device, disk_free = find_typical(backend), read_free(models_folder())
    return MachineProfile(backend=backend, device=device, disk_bandwidth=UNKNOWN_DISK, disk_free=disk_free)


def _describe_measured(backend: str, benchmark: DeviceBenchmark, measured: MeasuredSpeed) -> MachineProfile:
    return MachineProfile(
        backend=backend,
        device=make_device(benchmark.name or read_processor(), _read_memory(benchmark), measured.speed),
        disk_bandwidth=measured.disk_bandwidth,
        disk_free=read_free(models_folder()),
    )


def _read_memory(benchmark: DeviceBenchmark) -> DeviceMemory:
    """Return the memory of a device; on a Mac, frameworks know a limit, and not how much of it other programs use."""
    memory = benchmark.read_memory()
    if sys.platform == "darwin" and (free := read_shared_memory()[1]):
        return DeviceMemory(memory.total, min(memory.free, free))
    return memory


def _measure_disk(folder: Path) -> float:
    with suppress(OSError):  # a disk that cannot be measured counts as a typical one
        folder.mkdir(parents=True, exist_ok=True)
    return measure_disk(folder)


def _make_key(offer: Offer[BackendSpec], plan: DevicePlan, benchmark: DeviceBenchmark) -> list[str]:
    options = sorted(f"{name}={value}" for name, value in plan.options.items())
    return [
        platform.node(),
        platform.processor() or platform.machine(),
        str(Machine().count_cores()),
        benchmark.name,
        offer.spec.name,
        offer.plugin.origin,
        metadata.version("parallax-core"),
        "forms",  # those that were cached before have none
        plan.device,
        plan.dtype,
        *options,
    ]
