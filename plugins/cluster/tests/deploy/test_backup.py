from __future__ import annotations

import io
import sqlite3
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from parallax_cluster.config.home import cluster_file, term_file
from parallax_cluster.deploy.backup import LIST, back_up, hold_state, read_backup, restore, write_archive
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.base.errors import ParallaxError
from parallax_core.config.home import keys_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def backup(tmp_path: Path, home: Path) -> Path:
    """Return a backup of a server that has a term, a key and codes."""
    fill()
    path = tmp_path / "backup"
    assert back_up(path) == 3
    del home
    return path


def fill() -> None:
    """Make the state of a server."""
    CodeStore(cluster_file()).add(b"proof", 3600.0, 0)
    term_file().write_bytes(b"first")
    key = keys_folder() / "own/default.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"secret")


def list_names() -> list[str]:
    """Return the names of the codes that are kept."""
    return [code.name for code in CodeStore(cluster_file()).list_codes()]


def find_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_state_is_as_it_was_for_its_owner_only(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list_names()
    assert (find_mode(backup), len(names)) == (0o600, 1)
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "other"))
    assert restore(backup) == []
    assert term_file().read_bytes() == b"first"
    assert (keys_folder() / "own/default.key").read_bytes() == b"secret"
    assert list_names() == names
    files = [path for folder in (cluster_file().parent, keys_folder()) for path in folder.rglob("*")]
    assert {find_mode(path) for path in files if path.is_file()} == {0o600}
    assert {find_mode(path) for path in (keys_folder(), keys_folder() / "own", cluster_file().parent)} == {0o700}


def test_former_state_is_kept(backup: Path, home: Path) -> None:
    term_file().write_bytes(b"second")
    assert restore(backup) == [home / "cluster.before", home / "keys.before"]
    assert (home / "cluster.before/coordinator").read_bytes() == b"second"
    assert term_file().read_bytes() == b"first"
    restore(backup)
    assert (home / "cluster.before/coordinator").read_bytes() == b"first"


def test_databases_are_copied_as_of_one_moment(backup: Path, tmp_path: Path) -> None:
    del backup
    with closing(sqlite3.connect(cluster_file(), isolation_level=None)) as database:
        database.execute("CREATE TABLE other (number)")
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO other VALUES (1)")
        back_up(tmp_path / "second")
        database.execute("COMMIT")
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(read_backup(tmp_path / "second")["cluster/codes.db"])
        assert database.execute("SELECT count(*) FROM other").fetchone() == (0,)


def test_server_that_runs_keeps_its_state(backup: Path) -> None:
    with ExitStack() as servers:
        servers.enter_context(hold_state())
        servers.enter_context(hold_state())  # a second server of the same user
        with pytest.raises(ParallaxError, match="a server of this user runs here"):
            restore(backup)
        back_up(backup.with_name("second"))
    with hold_state(alone=True), pytest.raises(ParallaxError, match="a backup is being restored here"), hold_state():
        pass


def test_file_that_exists_is_not_replaced(backup: Path) -> None:
    before = backup.read_bytes()
    with pytest.raises(ParallaxError, match="exists already"):
        back_up(backup)
    assert backup.read_bytes() == before


def test_machine_without_a_server_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match="there is no state of a server here"):
        back_up(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("place", [0, 40, -9])
def test_damaged_file_changes_nothing(backup: Path, place: int) -> None:
    data = bytearray(backup.read_bytes())
    data[place] ^= 255
    backup.write_bytes(data)
    check_refused(backup)


def test_file_that_was_cut_off_changes_nothing(backup: Path) -> None:
    data = backup.read_bytes()
    for size in range(0, len(data), 37):
        backup.write_bytes(data[:size])
        check_refused(backup)


def check_refused(path: Path, reason: str = "is no backup, or a damaged one") -> None:
    term_file().write_bytes(b"now")
    with pytest.raises(ParallaxError, match=reason):
        restore(path)
    assert term_file().read_bytes() == b"now"


@pytest.mark.parametrize("name", ["cluster/../../x", "/etc/x", "models/x", "cluster", "keys/", "keys//x", "keys/./x"])
def test_file_elsewhere_is_refused(backup: Path, name: str) -> None:
    rewrite(backup, {**read_backup(backup), name: b"x"})
    check_refused(backup, "belongs to no server")


def test_damaged_database_is_refused(backup: Path) -> None:
    rewrite(backup, {**read_backup(backup), "cluster/codes.db": b"SQLite format 3\0" + b"x" * 5000})
    check_refused(backup, "codes.db is damaged")


def test_link_is_refused(backup: Path) -> None:
    link = tarfile.TarInfo("cluster/x")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(backup, "w:gz") as archive:
        archive.addfile(link)
    check_refused(backup)


def test_backup_of_a_later_layout_is_refused(backup: Path) -> None:
    with tarfile.open(backup, "w:gz") as archive:
        member = tarfile.TarInfo(LIST)
        data = b'{"version": 2, "files": {}}'
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    check_refused(backup, "version 2 of the layout")


def rewrite(path: Path, files: dict[str, bytes]) -> None:
    """Write a backup of these files with a correct list."""
    path.unlink()
    write_archive(path, files)
