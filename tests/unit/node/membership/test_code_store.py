from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.cluster.membership.code_rules import describe_state
from parallax_core.node.membership.code_store import KEPT_S, CodeStore, ListeningHead


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
