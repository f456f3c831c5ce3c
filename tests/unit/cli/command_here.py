"""Runs a command in this process, which saves the start of another one."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

import pytest

from parallax_core import cli


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return what `parallax` prints and ends with, as another process would."""
    stdout, stderr = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["parallax", *arguments])
        patch.setattr(cli, "_leave", _leave)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def _leave(code: int) -> NoReturn:
    """End the command, not the process."""
    raise SystemExit(code)
