"""Cores and memory as control groups of both versions grant them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from parallax_backend_mlx.limits import ControlGroups, count_cores, find_host_room

Files = dict[str, str]


def make_groups(folder: Path, membership: str, files: Files) -> ControlGroups:
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return ControlGroups(folder / "membership", folder / "root")


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/gone\n", {"cpu.max": "100000 100000"}, 1),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, math.inf),
        (
            "3:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("4:memory:/a\n", {"memory/a/cpu.max": "100000 100000"}, math.inf),
    ],
)
def test_cores_are_what_the_groups_grant(tmp_path: Path, membership: str, files: Files, cores: float) -> None:
    groups = make_groups(tmp_path, membership, files)
    assert groups.count_cores() == cores
    available = len(os.sched_getaffinity(0))
    assert count_cores(groups) == max(1, min(available, math.ceil(cores) if cores < math.inf else available))


@pytest.mark.parametrize(
    ("membership", "files", "room"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "5"}, math.inf),
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "300"}, 700),
        (
            "0::/a\n",
            {"a/memory.max": "1000", "a/memory.current": "900", "a/memory.stat": "anon 1\ninactive_file 500"},
            600,
        ),
        ("0::/a\n", {"a/memory.max": "10", "a/memory.current": "900"}, 0),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "1"}, 999),
    ],
)
def test_memory_is_what_the_groups_leave(tmp_path: Path, membership: str, files: Files, room: float) -> None:
    groups = make_groups(tmp_path, membership, files)
    assert groups.find_room() == room
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 2 kB\n")
    assert find_host_room(groups, meminfo) == min(room, 2048)
