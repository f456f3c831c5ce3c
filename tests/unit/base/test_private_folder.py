from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.membership.event_store import Event, EventStore
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.base import private_folder
from parallax_core.base.private_folder import make_private_folder
from parallax_core.config.home import cache_folder


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


def test_what_a_cluster_keeps_is_its_owners_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    CodeStore(tmp_path / "codes/file").add(b"proof", 60.0, 1)
    EventStore(tmp_path / "events/file").add([Event(time=1.0, kind="node_joined", subject="attic")])
    PlanStore(tmp_path / "plans/file").save_loaded("model", ["other"])
    TermStore(tmp_path / "terms/file").begin("model")
    ensure_signing_key(tmp_path / "signing/file")
    JoinedHead(transport="zmq", address="tcp://h:1", head=b"h", machine="attic").save(tmp_path / "joined")
    cache_folder("own")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    folders = {path: mode for path, mode in modes.items() if path.is_dir() and path.name not in {"home", "cache"}}
    assert set(folders.values()) == {0o700}, folders
    kept = ("codes", "events", "plans", "signing")
    assert {modes[tmp_path / folder / "file"] for folder in kept} == {0o600}, modes
