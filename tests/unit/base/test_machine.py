"""Cores and memory as the kernel and control groups of both versions grant them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.base.machine import Machine

Files = dict[str, str]
KIB = 1024
AVAILABLE = {"meminfo": "MemTotal: 900 kB\nMemAvailable:     500 kB\n"}
PAIRS = {f"processors/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}" for n in range(8)}
"""Eight processors, two on each core."""
LIMITED = {"a/memory.max": "400000", "a/memory.current": "100000"}


def make_machine(folder: Path, membership: str, files: Files) -> Machine:
    for name, text in {"cgroup": membership, **files}.items():
        top = name.partition("/")[0]
        path = folder / name if top in {"cgroup", "meminfo", "processors"} else folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Machine(folder / "cgroup", folder / "groups", folder / "meminfo", folder / "processors")


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", PAIRS, 4),
        ("0::/a/b", {"a/b/cpu.max": "max 100000"}, 8),
        ("0::/a/b", {"a/b/cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {**PAIRS, "a/b/cpu.max": "900000 100000"}, 4),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/gone", {"cpu.max": "100000 100000"}, 1),
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        (
            "3:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("4:memory:/a", {"memory/a/cpu.max": "100000 100000"}, 8),
    ],
)
def test_cores_are_those_the_control_groups_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: Files, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert make_machine(tmp_path, membership, files).count_cores() == cores


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        ("0::/", {}, None),
        ("0::/", AVAILABLE, 500 * KIB),
        ("0::/a", {**AVAILABLE, "a/memory.max": "max", "a/memory.current": "7"}, 500 * KIB),
        ("0::/a", LIMITED, 300_000),
        ("0::/a/b", {**AVAILABLE, **LIMITED}, 300_000),
        ("0::/a/b", {**LIMITED, "a/b/memory.max": "200000", "a/b/memory.current": "100000"}, 100_000),
        ("0::/a", {**LIMITED, "a/memory.stat": "anon 1\ninactive_file 50000"}, 350_000),
        ("0::/a", {"a/memory.max": "10", "a/memory.current": "900"}, 0),
        ("4:memory:/a", {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "1"}, 999),
    ],
)
def test_free_memory_is_what_the_machine_and_all_groups_leave(
    tmp_path: Path, membership: str, files: Files, free: int | None
) -> None:
    assert make_machine(tmp_path, membership, files).free_memory() == free


def test_machine_without_control_groups_has_memory_all_the_same(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    machine = Machine(nowhere, nowhere, nowhere, nowhere)
    assert machine.free_memory() is None
    assert machine.total_memory() > 2**28
    assert machine.count_cores() >= 1


def test_copy_of_a_folder_or_a_machine_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot").write_text("3f1c-77\n")
    machine = Machine(boot=tmp_path / "boot")
    for name in ("keys", "copy"):
        (tmp_path / name).mkdir()
    found = [machine.identify(tmp_path / name) for name in ("keys", "keys", "copy", "missing")]
    assert found[0] == found[1]
    assert found[2] != found[0]
    assert found[3] == ""
    assert len(found[0]) == 16
    (tmp_path / "boot").write_text("another start\n")
    assert machine.identify(tmp_path / "keys") != found[0]
    (tmp_path / "boot").write_text("3f1c-77\n")
    monkeypatch.setattr("socket.gethostname", lambda: "clone")
    assert machine.identify(tmp_path / "keys") != found[0]
    assert Machine(boot=tmp_path / "none").identify(tmp_path / "keys") != found[0]


def test_driver_is_there_if_its_file_is(tmp_path: Path) -> None:
    machine = Machine(nvidia_driver=tmp_path / "version")
    assert not machine.has_nvidia_driver()
    (tmp_path / "version").write_text("580\n")
    assert machine.has_nvidia_driver()


CYCLE = """
import gc, weakref
from parallax_core.base.machine import return_memory

class Link:
    def __init__(self):
        self.own = self

link = Link()
gone = weakref.ref(link)
gc.freeze()
del link
gc.collect()
assert gone() is not None
return_memory()
assert gone() is None
assert gc.get_freeze_count() > 0
"""


def test_memory_is_returned_also_of_cycles_that_were_frozen() -> None:
    subprocess.run([sys.executable, "-c", CYCLE], check=True)  # elsewhere, since tests of this process do not freeze
