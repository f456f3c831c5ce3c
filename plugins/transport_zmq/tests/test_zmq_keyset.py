from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from parallax_transport_zmq import keyset
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.keyset import KeyFolder

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(ring: Keyring, home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> KeyFolder:
    """Return the keys in memory, read when the folder had one key, and had not changed for long."""
    ring.allow(KEY, "mini")
    monkeypatch.setattr(keyset, "SETTLED_NS", -(10**12))
    folder = KeyFolder(home / "keys", 1.0, clock)
    folder.look()
    return folder


def test_keys_are_looked_up_without_a_look_at_the_files(
    kept: KeyFolder, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(os, "scandir", None)
    monkeypatch.setattr(Path, "stat", None)
    for _ in range(1000):
        clock.now += 0.0009
        assert KEY in kept.look().by_public


def test_change_of_the_folder_is_noticed_at_once_by_who_asks_for_it(
    kept: KeyFolder, ring: Keyring, clock: Clock
) -> None:
    ring.allow(OTHER, "desk")
    assert OTHER not in kept.look().by_public
    clock.now += keyset.FRESH_S
    assert OTHER not in kept.look().by_public
    assert OTHER in kept.look(fresh=True).by_public


def test_strangers_cause_no_scan_of_a_folder_that_does_not_change(
    kept: KeyFolder, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(os, "scandir", None)
    for _ in range(8):
        clock.now += keyset.FRESH_S
        assert OTHER not in kept.look(fresh=True).by_public


def test_file_that_changes_in_place_is_noticed_after_a_while(
    kept: KeyFolder, home: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "keys/known/mini.pub").chmod(0o622)
    clock.now += 0.9
    assert KEY in kept.look(fresh=True).by_public
    clock.now += 0.1
    kept.follow()
    assert KEY not in kept.look().by_public
    assert "ignored a key" in caplog.text


def test_two_changes_of_one_moment_are_both_noticed(
    kept: KeyFolder, ring: Keyring, home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a folder may stay the same then."""
    monkeypatch.setattr(keyset, "SETTLED_NS", 10**15)
    stat, known = Path.stat, home / "keys/known"
    seen = known.stat()
    monkeypatch.setattr(Path, "stat", lambda path, **options: seen if path == known else stat(path, **options))
    kept.refresh()
    ring.allow(OTHER, "desk")
    clock.now += keyset.UNSETTLED_S
    assert OTHER in kept.look(fresh=True).by_public


def test_reader_does_not_wait_for_who_reads_the_folder_again(
    kept: KeyFolder, ring: Keyring, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.allow(OTHER, "desk")
    clock.now += 1.0
    reads, may_go_on, scan = threading.Event(), threading.Event(), os.scandir

    def wait(folder: Path) -> Any:
        reads.set()
        assert may_go_on.wait(10)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", wait)
    thread = threading.Thread(target=kept.look)
    thread.start()
    assert reads.wait(10)
    assert OTHER not in kept.look().by_public
    may_go_on.set()
    thread.join(10)
    assert OTHER in kept.look().by_public


def test_own_change_counts_at_once(kept: KeyFolder, ring: Keyring) -> None:
    ring.allow(OTHER, "desk")
    assert OTHER in kept.refresh().by_public


def test_odd_files_are_no_keys(home: Path, ring: Keyring) -> None:
    ring.allow(KEY, "mini")
    ring.remove("mini", own=False)
    (home / "keys/removed/note.txt").write_text("x")
    (home / "keys/known/folder.pub").mkdir()
    (home / "keys/known/notes").write_text("x")
    assert list(ring.list_keys()) == []
    assert ring.list_removed() == {KEY: "mini"}
    (home / "keys/removed" / KEY.hex()).write_bytes(b"\xff")
    assert ring.list_removed() == {KEY: ""}
