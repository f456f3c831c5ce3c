from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli.backup import app, restore_app
from parallax_cluster.config.home import term_file


def test_backup_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    term_file().parent.mkdir(parents=True)
    term_file().write_bytes(b"first")
    file = str(tmp_path / "backup")
    made = CliRunner().invoke(app, [file])
    assert made.stdout == f"{file} has 1 files; whoever reads it can be the server\n"
    done = CliRunner().invoke(restore_app, [file])
    assert done.stdout.splitlines() == [
        f"what was there before is in {tmp_path / 'home/cluster.before'}",
        "restored: start `parallax run` as before, at the same address",
    ]
