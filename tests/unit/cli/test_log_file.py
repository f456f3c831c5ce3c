from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.cli.log_file import STDERR, LogFile


def write(text: str) -> None:
    os.write(STDERR, text.encode())


def test_log_file_gets_what_python_c_and_programs_write(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log" / "run.log")
    with log:
        print("python", file=sys.__stderr__)
        write("c\n")
        subprocess.run(["/bin/sh", "-c", "echo program >&2"], check=True)
    write("after\n")
    assert log.path.read_text().splitlines() == ["python", "c", "program"]
    assert log.path.stat().st_mode & 0o777 == 0o600
    with log:
        write("again\n")
    assert log.path.read_text().splitlines()[-2:] == ["program", "again"]


def test_terminal_is_what_standard_error_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LogFile(tmp_path / "run.log") as log, log.open_terminal() as terminal:
        print("on the terminal", file=terminal, flush=True)
        write("in the file\n")
    assert capfd.readouterr().err == "on the terminal\n"


def test_large_log_file_makes_way_for_a_new_one(tmp_path: Path) -> None:
    with LogFile(tmp_path / "run.log", most_bytes=8) as log:
        write("one\n")
        log.limit()
        write("two\n")
        log.limit()
        write("three\n")
    assert (tmp_path / "run.old").read_text() == "one\ntwo\n"
    assert log.path.read_text() == "three\n"


def test_file_that_cannot_be_written_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").mkdir()
    with pytest.raises(IsADirectoryError):
        LogFile(tmp_path / "run.log").__enter__()
    write("still here\n")
    assert capfd.readouterr().err == "still here\n"
