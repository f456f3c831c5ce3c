"""Machines with another wire version learn why they cannot join: a later Parallax is stood in for by its number."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.wire.codec import WIRE_VERSION
from tests.e2e.conftest import PARALLAX, environment
from tests.e2e.test_join import homes, make_code, run
from tests.e2e.test_run import coordinating
from tests.e2e.test_workers import wait_until

__all__ = ["homes"]

LATER = f"""
import runpy
import sys

from parallax_core.wire import codec

codec.WIRE_VERSION += 1
codec.VERSION_BYTE = bytes([codec.WIRE_VERSION])
sys.argv[0] = {PARALLAX!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "command",
    [
        ("join",),
        pytest.param(("cluster", "relay"), marks=pytest.mark.nightly),
        pytest.param(("run", "--listen", "tcp://127.0.0.1:9", "--standby-of"), marks=pytest.mark.nightly),
    ],
)
def test_machine_of_another_wire_version_ends_with_both_and_leaves_the_code_unused(
    command: tuple[str, ...], homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    with coordinating(homes["server"], tmp_path / "log", "--no-local", model=split):
        code = make_code(homes["server"])
        [address] = re.findall(r"head listens at (\S+)", (tmp_path / "log").read_text())
        refused = run_later(homes["one"], *command, code)
        assert refused.returncode == 1
        assert f"version {WIRE_VERSION} of the wire format, and the machine" in refused.stderr
        assert f", version {WIRE_VERSION + 1}" in refused.stderr
        assert "hint: install the same version of Parallax on every node" in refused.stderr
        codes = [line.split()[1:3] for line in run(homes["server"], "cluster", "codes", "list").stdout.splitlines()[1:]]
        assert codes == [["valid", "0/1"], ["valid", "0/any"]]

        joined = subprocess.Popen([PARALLAX, "join", "--backend", "mlx", code], env=environment(homes["one"]))
        wait_until(lambda: "node joined" in (tmp_path / "log").read_text())
        joined.kill()
        joined.wait()
        again = run_later(homes["one"], *command, address)
        assert again.returncode == 1
        assert "error: node 'head', with Parallax" in again.stderr
        assert f"uses version {WIRE_VERSION} of the wire format, and this node" in again.stderr
        assert "Traceback" not in again.stderr


def run_later(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the next wire version."""
    command = [sys.executable, "-c", LATER, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(home), timeout=60, check=False)
