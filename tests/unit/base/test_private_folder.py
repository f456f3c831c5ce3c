from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from parallax_core.base import private_folder
from parallax_core.base.private_folder import make_private_folder


def refuse(prefix: str, dir: Path | None = None) -> tempfile.TemporaryDirectory[str]:  # noqa: A002 -- as in tempfile
    """Make folders only where it is said where."""
    if dir is None:
        raise FileNotFoundError("no usable temporary directory found")
    return tempfile.TemporaryDirectory(prefix=prefix, dir=dir)


def test_folder_is_in_memory_where_no_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_folder, "TemporaryDirectory", refuse)
    monkeypatch.setattr(private_folder, "IN_MEMORY", str(tmp_path))
    for given in (str(tmp_path / "run"), ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        with make_private_folder() as folder:
            assert Path(folder).parent == tmp_path
            assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with make_private_folder() as folder:
        assert Path(folder).parent == tmp_path / "run"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(private_folder, "IN_MEMORY", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        make_private_folder()


def test_folder_is_where_temporary_files_are_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with make_private_folder() as folder:
        assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()
