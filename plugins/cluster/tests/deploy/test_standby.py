from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parallax_cluster.config.home import standby_file, term_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy import standby as module
from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.standby import StandbyLink, StandbyRecord, find_taken_over, make_link
from parallax_cluster.membership.standby_state import StandbyState
from parallax_cluster.membership.term_proof import write_proof
from parallax_cluster.node.membership.standby import Candidacy
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.api import UsageError
from parallax_core.config.config import Config
from parallax_core.plugins.host import PluginHost
from plugins.cluster.tests.membership.terms import OLD, ONE

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


REACH, JOINED = (
    "tcp://10.0.0.6:9000",
    JoinedHead(transport="zmq", address="tcp://first:9000", head=b"h", machine="attic"),
)


def make_following(states: Sequence[tuple[StandbyState, bool]], seen: list[StandbyRecord | None]) -> type[Any]:
    """Return what stands for a `Follower`: it hears some states, and notes what is recorded then."""

    class Follower:
        def __init__(self, *given: Any) -> None:
            self._note = given[-1]

        def promote(self) -> None:
            pass

        async def run(self) -> StandbyState:
            for state, is_linked in states:
                self._note(state, is_linked)
                seen.append(msgspec.json.decode(standby_file().read_bytes(), type=StandbyRecord))
            return states[-1][0]

    return Follower


async def test_what_a_standby_hears_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    first = msgspec.structs.replace(STATE, proof=write_proof(OLD.begin()))
    later = msgspec.structs.replace(STATE, proof=write_proof(OLD.begin(ONE)), term=3, model="org/other")
    seen: list[StandbyRecord | None] = []
    monkeypatch.setattr(module, "Follower", make_following([(first, True), (first, True), (later, False)], seen))
    standby_file().parent.mkdir(parents=True, exist_ok=True)
    offer = PluginHost.discover(Config()).transports().get("inprocess")
    link = StandbyLink(JOINED, OLD.key, Candidacy(REACH, ONE.key, ONE.signing), offer, 2.0)
    assert await link.follow() == msgspec.structs.replace(later, predecessor=OLD.key)
    about: Any = {"pid": os.getpid(), "address": JOINED.address}
    heard = StandbyRecord(model="org/model", term=2, is_linked=True, is_accepted=False, **about)
    assert seen == [heard, heard, StandbyRecord(model="org/other", term=3, **about)]


HEARD = JoinedHead(transport="zmq", address="tcp://first:9000", head=bytes(32) + b"10.0.0.5:9000", machine="attic")


@pytest.mark.parametrize("timeout_s", [None, 7.5])
def test_standby_would_listen_where_it_is_told_and_waits_as_long_as_it_is_told(timeout_s: float | None) -> None:
    plugins = PluginHost.discover(Config())
    settings = RunSettings(model="m", listen="tcp://203.0.113.6:9000", peer_timeout=timeout_s)
    link = make_link(settings, plugins, HEARD)
    assert link.candidacy.reach == "tcp://203.0.113.6:9000"
    assert link.key == bytes(32) != link.candidacy.key
    assert link.timeout_s == (timeout_s or plugins.transports().get("zmq").spec.timeout_s)


def test_standby_that_no_machine_could_join_is_refused_with_what_it_was_given() -> None:
    settings = RunSettings(model="m", listen="tcp://0.0.0.0:0")
    with pytest.raises(UsageError, match=r"^a standby cannot listen at tcp://0\.0\.0\.0:0: the port of ") as refused:
        make_link(settings, PluginHost.discover(Config()), HEARD)
    assert refused.value.hint.startswith("give the address at which machines are to join this one: --listen tcp://")
