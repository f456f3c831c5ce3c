from __future__ import annotations

import os
import sys

import pytest

from parallax_core.base.child_log import CHUNK_BYTES
from parallax_core.base.processes import ChildProcess


async def run(code: str) -> None:
    """Run a program whose log is copied to the end, with the name ``a``."""
    process = await ChildProcess.start([sys.executable, "-S", "-c", code], os.environ, name="a")
    await process.wait()
    assert await process.kill(10)


async def test_lines_of_a_worker_and_its_child_processes_have_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    child = "import os; os.write(2, b'of the child\\n')"
    code = (
        "import os, subprocess, sys; os.write(2, b'one\\n[a] two\\n\\n10%\\r100%\\n');"
        f"subprocess.run([sys.executable, '-S', '-c', {child!r}]); os.write(2, b'no end of line')"
    )
    await run(code)
    assert capsys.readouterr().err.splitlines() == [
        *("[a] one", "[a] two", "", "[a] 100%", "[a] of the child", "[a] no end of line"),
    ]


async def test_line_without_an_end_does_not_fill_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    await run(f"import os; os.write(2, b'x' * {3 * CHUNK_BYTES})")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert sum(line.count("x") for line in lines) == 3 * CHUNK_BYTES
