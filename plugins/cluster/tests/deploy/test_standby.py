from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from parallax_cluster.config.home import term_file
from parallax_cluster.deploy.standby import find_taken_over
from parallax_cluster.membership.standby_state import StandbyState
from parallax_cluster.membership.term_proof import write_proof
from parallax_cluster.node.membership.term_store import TermStore
from plugins.cluster.tests.membership.terms import ONE

STATE = StandbyState(cluster=b"c", term=2, model="org/model", predecessor=b"key of the first")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TermStore:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return TermStore(term_file())


def test_standby_that_has_taken_over_serves_when_it_is_started_again(store: TermStore) -> None:
    assert find_taken_over(STATE.predecessor) is None, "it has not"
    store.keep(STATE)
    assert find_taken_over(STATE.predecessor) == STATE


@pytest.mark.parametrize("key", [b"", b"key of another"])
def test_standby_of_another_server_follows_that(store: TermStore, key: bytes) -> None:
    store.keep(STATE)
    assert find_taken_over(key) is None


@pytest.mark.parametrize("change", [{"newer": write_proof(ONE.begin())}, {"predecessor": b""}])
def test_server_that_was_replaced_or_took_over_from_none_may_be_a_standby(
    store: TermStore, change: dict[str, bytes]
) -> None:
    store.keep(msgspec.structs.replace(STATE, **change))
    assert find_taken_over(STATE.predecessor) is None
