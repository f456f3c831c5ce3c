from __future__ import annotations

import errno
import logging
import sqlite3
from pathlib import Path

import pytest

from parallax_core.base.disk import FaultLog, is_full


def test_full_disks_are_told_apart_from_other_faults(tmp_path: Path) -> None:
    assert is_full(OSError(errno.ENOSPC, "no space left"))
    assert is_full(OSError(errno.EDQUOT, "quota exceeded"))
    assert not is_full(BrokenPipeError(errno.EPIPE, "broken pipe"))
    assert not is_full(None)
    with sqlite3.connect(tmp_path / "file") as database, pytest.raises(sqlite3.OperationalError) as caught:
        database.executescript("PRAGMA max_page_count = 2; CREATE TABLE one (a); CREATE TABLE two (a);")
    assert is_full(caught.value)
    with pytest.raises(sqlite3.OperationalError) as other:
        database.execute("SELECT * FROM nothing")
    assert not is_full(other.value)
    database.close()


def test_fault_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger(__name__), "the store")
    with caplog.at_level(logging.INFO):
        faults.clear()
        for fault in ("it is full", "it is full", "it is gone"):
            faults.note(fault)
        for _ in range(2):
            faults.clear()
        faults.note("it is gone")
    told = ["it is full", "it is gone", "the store can be written again", "it is gone"]
    assert [record.getMessage() for record in caplog.records] == told
