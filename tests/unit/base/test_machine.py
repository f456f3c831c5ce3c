from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.base.machine import read_memory

GROUP = "sys/fs/cgroup"
KIB = 1024


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / {"free": "proc/meminfo", "most": f"{GROUP}/memory.max", "used": f"{GROUP}/memory.current"}[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


FREE = "MemTotal: 900 kB\nMemAvailable:     500 kB\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 0),
        ({"free": FREE}, 500 * KIB),
        ({"free": FREE, "most": "max\n", "used": "7\n"}, 500 * KIB),
        ({"free": FREE, "most": "409600\n", "used": "102400\n"}, 300 * KIB),
        ({"free": FREE, "most": "409600\n", "used": "409601\n"}, 0),
        ({"most": "409600\n", "used": "0\n"}, 0),
    ],
)
def test_free_memory_is_what_the_machine_and_the_group_allow(tmp_path: Path, files: dict[str, str], found: int) -> None:
    assert read_memory(write(tmp_path, **files)) == found
