from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parallax_cluster.placement.nodes_file import read_cluster


def run_profile(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the backend torch and a cache of its own."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "parallax_core",
            "cluster",
            "profile",
            "--backend",
            "torch",
            "--device",
            "cpu",
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PARALLAX_HOME": str(home), "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.nightly
def test_profile_is_an_entry_of_a_nodes_file(tmp_path: Path) -> None:
    first = run_profile(tmp_path, "--name", "attic")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("[[nodes]]  # measured with torch; ")
    (node,) = read_cluster(tomllib.loads(first.stdout)).nodes
    assert (node.name, node.device.flops_efficiency) == ("attic", 1.0)
    assert min(node.device.memory, node.device.flops, node.device.bandwidth, node.disk_bandwidth) > 0
    again = run_profile(tmp_path, "--name", "attic", "--json")
    (same,) = read_cluster(json.loads(again.stdout)).nodes
    assert (same.device.flops, same.device.bandwidth) == (node.device.flops, node.device.bandwidth)


def test_unknown_dtype_is_an_error(tmp_path: Path) -> None:
    done = run_profile(tmp_path, "--dtype", "float7")
    assert done.returncode == 2
    assert "error: --dtype is 'float7'" in done.stderr
