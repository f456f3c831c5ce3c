from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parallax_cluster.node.profile.hardware import find_gpus, read_processor, read_shared_memory, run_tool
from parallax_cluster.node.profile.vendors import Gpu
from parallax_core.base.machine import Machine
from plugins.cluster.tests.node.profile import recorded


def answer(**outputs: str) -> Callable[[Sequence[str]], str]:
    """Return what runs tools: those given answer, with ``-`` for ``_`` in their names, and others are not installed."""
    return lambda command: outputs.get(command[0].replace("-", "_"), "")


def test_first_tool_with_an_answer_counts() -> None:
    run = answer(nvidia_smi=recorded.NVIDIA, rocm_smi=recorded.ROCM)
    assert [gpu.name for gpu in find_gpus(run, "linux")] == ["NVIDIA A800-SXM4-80GB", "NVIDIA GeForce RTX 5070 Ti"]
    assert [gpu.name for gpu in find_gpus(answer(rocm_smi=recorded.ROCM), "linux")] == ["Radeon RX 7900 XT"]
    assert find_gpus(answer(), "linux") == []


def test_shared_memory_is_that_of_the_machine() -> None:
    (gpu,) = find_gpus(answer(nvidia_smi=recorded.NVIDIA_GB10), "linux")
    assert gpu.total == Machine().total_memory()
    assert 0 < gpu.free <= gpu.total
    mac = find_gpus(answer(system_profiler=recorded.APPLE, vm_stat=recorded.VM_STAT), "darwin")
    assert mac == [Gpu("Apple M3 Pro", Machine().total_memory(), 2160842 * 4096)]


def test_mac_whose_memory_cannot_be_read_says_so() -> None:
    assert read_shared_memory(answer(), "darwin")[1] == 0


def test_processor_is_named_by_the_system(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert read_processor(answer(sysctl="Apple M2\n"), cpuinfo, "darwin") == "Apple M2"
    assert (
        read_processor(answer(lscpu="Vendor ID: ARM\nModel name:   Neoverse-N1\n"), cpuinfo, "linux") == "Neoverse-N1"
    )
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: other\n")
    assert read_processor(answer(), cpuinfo, "linux") == "AMD EPYC 7B13"
    cpuinfo.write_text("model name : \x1b[31mred" + "x" * 500)
    name = read_processor(answer(), cpuinfo, "linux")
    assert name.isprintable()
    assert len(name) <= 100


@pytest.mark.parametrize(
    ("code", "output"),
    [("print('ok')", "ok\n"), ("raise SystemExit(9)", ""), ("import os; os.write(1, bytes([255]))", "\ufffd")],
)
def test_output_of_a_tool_is_read(code: str, output: str) -> None:
    assert run_tool((sys.executable, "-c", code)) == output


def test_tool_that_is_not_installed_says_nothing() -> None:
    assert run_tool(("no-such-tool-anywhere",)) == ""
