from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from parallax_cluster.membership.code_rules import CodeRecord, describe_state
from parallax_cluster.node.membership import code_store as module
from parallax_cluster.node.membership.code_store import KEPT_S, CodeStore
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.contracts.joining import ListeningHead


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> CodeStore:
    return CodeStore(tmp_path / "home" / "cluster.db", clock)


def test_single_use_code_admits_one_machine_again_and_no_other(store: CodeStore) -> None:
    store.add(b"proof", 60.0, 1)
    store.admit(b"proof", b"one")
    store.admit(b"proof", b"one")
    with pytest.raises(ParallaxError, match="used once"):
        store.admit(b"proof", b"two")
    [code] = store.list_codes()
    assert (code.num_uses, describe_state(code, code.created)) == (1, "used")


def test_expired_code_is_known_and_admits_none(store: CodeStore, clock: Clock) -> None:
    store.add(b"proof", 60.0, 0)
    store.admit(b"proof", b"one")
    clock.now += 60.0
    assert store.knows(b"proof")
    with pytest.raises(ParallaxError, match="expired"):
        store.admit(b"proof", b"two")


def test_code_long_expired_is_forgotten(store: CodeStore, clock: Clock) -> None:
    store.add(b"proof", 60.0, 0)
    clock.now += 61.0 + KEPT_S
    store.add(b"later", 60.0, 0)
    assert not store.knows(b"proof")
    assert [code.proof for code in store.list_codes()] == [b"later"]


def test_revocation_by_another_process_counts_at_once(store: CodeStore, tmp_path: Path, clock: Clock) -> None:
    code = store.add(b"proof", 60.0, 0)
    store.admit(b"proof", b"one")
    CodeStore(tmp_path / "home" / "cluster.db", clock).revoke(code.name)
    with pytest.raises(ParallaxError, match="revoked"):
        store.admit(b"proof", b"two")


def test_unknown_code_is_refused(store: CodeStore) -> None:
    assert not store.knows(b"proof")
    with pytest.raises(ParallaxError, match="unknown"):
        store.admit(b"proof", b"one")
    with pytest.raises(UnknownName, match="no join code 'abcd'"):
        store.revoke("abcd")


def test_last_head_is_the_one_that_codes_are_for(store: CodeStore) -> None:
    assert store.find_head() is None
    store.note_head(ListeningHead("zmq", b"first"))
    store.note_head(ListeningHead("zmq", b"second"))
    assert store.find_head() == ("zmq", b"second")


def test_file_is_for_its_owner_only(store: CodeStore, tmp_path: Path) -> None:
    store.add(b"proof", 60.0, 1)
    assert stat.S_IMODE((tmp_path / "home" / "cluster.db").stat().st_mode) == 0o600


def test_damaged_file_admits_none(store: CodeStore, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cluster.db").write_bytes(b"this is no database" * 100)
    assert not store.knows(b"proof")
    with pytest.raises(ParallaxError, match="cannot be used"):
        store.admit(b"proof", b"one")


def test_code_is_known_while_another_process_writes(store: CodeStore, tmp_path: Path) -> None:
    store.add(b"proof", 60.0, 1)
    with closing(sqlite3.connect(tmp_path / "home" / "cluster.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.knows(b"proof")
        assert not store.knows(b"other")
        assert len(store.list_codes()) == 1


def count_reads(store: CodeStore, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    reads: list[None] = []
    read = store.list_codes

    def count() -> list[CodeRecord]:
        reads.append(None)
        return read()

    monkeypatch.setattr(store, "list_codes", count)
    return reads


@pytest.fixture
def settled(store: CodeStore, monkeypatch: pytest.MonkeyPatch) -> CodeStore:
    """Return the codes in memory, as if their file had not changed for long."""
    monkeypatch.setattr(module, "SETTLED_NS", -(10**12))
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    for number in range(3):
        store.add(bytes([number]), 60.0, 1)
    assert store.knows(b"\1")
    return store


def test_strangers_are_told_from_memory(settled: CodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(settled, monkeypatch)
    for _ in range(1000):
        assert not settled.knows(b"stranger")
        assert settled.knows(b"\1")
    assert not reads


def test_code_of_another_process_is_known_at_once(settled: CodeStore, tmp_path: Path, clock: Clock) -> None:
    CodeStore(tmp_path / "home" / "cluster.db", clock).add(b"proof", 60.0, 1)
    assert settled.knows(b"proof")


def test_two_changes_of_one_moment_are_both_noticed(
    settled: CodeStore, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the file may stay the same then."""
    monkeypatch.setattr(module, "SETTLED_NS", 10**15)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(module, "_stamp", lambda path: (2**62, 2, path.stat().st_ino))
    assert not settled.knows(b"proof")
    CodeStore(tmp_path / "home" / "cluster.db", clock).add(b"proof", 60.0, 1)
    assert settled.knows(b"proof")


@pytest.mark.parametrize("way", ["revoked", "expired"])
def test_code_that_is_over_costs_no_access_to_the_file(
    settled: CodeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "revoked":
        settled.revoke(next(code.name for code in settled.list_codes() if code.proof == b"\1"))
    else:
        clock.now += 60.0
    assert settled.knows(b"\1")
    monkeypatch.setattr(module, "write_database", None)
    for _ in range(100):
        with pytest.raises(ParallaxError, match=way):
            settled.admit(b"\1", b"guest")


def test_unreadable_codes_are_logged_once_in_a_while(
    settled: CodeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "home" / "cluster.db").write_bytes(b"this is no database" * 100)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    for _ in range(100):
        assert settled.knows(b"\1"), "what was known counts"
    assert caplog.text.count("join codes cannot be read") == 1


def test_valid_codes_are_described_for_users(store: CodeStore, clock: Clock) -> None:
    assert store.describe_valid() == {}
    once, many, any_number = store.add(b"a", 60.0, 1), store.add(b"b", 60.0, 3), store.add(b"c", 60.0, 0)
    store.add(b"over", 1.0, 0)
    store.admit(b"b", b"one")
    store.revoke(store.add(b"revoked", 60.0, 0).name)
    clock.now += 2.0
    found = store.describe_valid()
    assert {name: text.partition(" until ")[0] for name, text in found.items()} == {
        once.name: "one machine",
        many.name: "2 machines",
        any_number.name: "any number of machines",
    }
    store.admit(b"a", b"one")
    assert once.name not in store.describe_valid()
