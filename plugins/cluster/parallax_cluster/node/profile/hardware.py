"""Finds the GPUs and the processor of this machine with the tools of their vendors."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from parallax_cluster.node.profile.vendors import (
    Gpu,
    parse_amd_smi,
    parse_apple,
    parse_nvidia,
    parse_rocm,
    parse_vm_stat,
)
from parallax_core.api import Machine

TOOL_S = 3.0
"""Seconds that a tool may take."""
MOST_OUTPUT = 2**20
"""Bytes of a tool's output that are read."""
CPUINFO = Path("/proc/cpuinfo")


class VendorTool(NamedTuple):
    """A vendor's tool, and the parser of its output."""

    command: tuple[str, ...]
    parse: Callable[[str], list[Gpu]]


TOOLS = (
    VendorTool(
        ("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"),
        parse_nvidia,
    ),
    VendorTool(("amd-smi", "static", "--asic", "--vram", "--json"), parse_amd_smi),
    VendorTool(("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"), parse_rocm),
)
MAC_TOOLS = (VendorTool(("system_profiler", "SPDisplaysDataType", "-json"), parse_apple),)


def run_tool(command: Sequence[str]) -> str:
    """Return the output of a tool; an empty text if it is not installed, fails, or takes too long."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, timeout=TOOL_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:MOST_OUTPUT].decode(errors="replace") if done.returncode == 0 else ""


def find_gpus(run: Callable[[Sequence[str]], str] = run_tool, system: str = sys.platform) -> list[Gpu]:
    """Return the GPUs listed by the first tool that answers; with shared memory, main memory's figures.

    Args:
        run: runs a command and returns its output.
        system: the operating system, as in `sys.platform`.
    """
    found = (tool.parse(run(tool.command)) for tool in (MAC_TOOLS if system == "darwin" else TOOLS))
    gpus = next((each for each in found if each), [])
    shared = read_shared_memory(run, system) if any(not gpu.total for gpu in gpus) else (0, 0)
    return [gpu if gpu.total else Gpu(gpu.name, *shared) for gpu in gpus]


def read_shared_memory(run: Callable[[Sequence[str]], str] = run_tool, system: str = sys.platform) -> tuple[int, int]:
    """Return the bytes of main memory, and those that are free; 0: unknown."""
    machine = Machine()
    free = parse_vm_stat(run(("vm_stat",))) if system == "darwin" else machine.free_memory()
    return machine.total_memory(), free or 0


def read_processor(
    run: Callable[[Sequence[str]], str] = run_tool, cpuinfo: Path = CPUINFO, system: str = sys.platform
) -> str:
    """Return the name of the processor, such as ``Intel(R) Xeon(R) Processor``; empty: unknown."""
    if system == "darwin":
        return clean_name(run(("sysctl", "-n", "machdep.cpu.brand_string")))
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    # On ARM, /proc/cpuinfo has numbers only, and lscpu knows their names.
    found = find_field(text, "model name") or find_field(run(("lscpu",)), "Model name")
    return clean_name(found)


def find_field(text: str, name: str) -> str:
    """Return the first value of a field in lines such as ``name : value``; empty if missing."""
    found = re.search(rf"^{re.escape(name)}[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def clean_name(text: str) -> str:
    """Return the printable first line of a text, with at most 100 characters."""
    line = text.strip().partition("\n")[0]
    return "".join(char for char in line if char.isprintable())[:100].strip()
