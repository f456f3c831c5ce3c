from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from parallax_cluster.config.home import term_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.code_admission import CodeAdmission
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.succession import (
    ToldState,
    adopt_machines,
    adopt_settings,
    check_taken_over,
    open_own_term,
    recall_plan,
)
from parallax_cluster.membership.standby_state import AcceptedStandby, ClusterSettings, StandbyState, read_state
from parallax_cluster.membership.term_proof import write_proof
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.base.errors import ParallaxError
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.joining import MachineKeys
from parallax_core.contracts.placement import PlacedStage, StageLease
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.transport import NodeRole
from parallax_core.deploy.executors import make_registry
from parallax_core.plugins.host import PluginHost
from plugins.cluster.tests.membership.terms import ONE
from tests.unit.node.cluster import Node, joined, open_registry, until

STUDIO, MINI, DESK_KEY = bytes(range(32)), bytes(range(1, 33)), b"\7" * 32
FORMER = bytes.fromhex(
    "88a7636c7573746572c41063636363636363636363636363636363a47465726d02a56d6f64656ca96f72672f6d6f64656ca8"
    "73657474696e677387a56474797065a46175746fa76261636b656e64c0a9706c6163656d656e74a6736561726368a96f626a"
    "656374697665aa7468726f756768707574ab636f6e63757272656e637908ad70726f6d70745f746f6b656e73cd0200ad6f75"
    "747075745f746f6b656e73cd0100a86d616368696e657382a673747564696fc420000102030405060708090a0b0c0d0e0f10"
    "1112131415161718191a1b1c1d1e1fa46d696e69c4200102030405060708090a0b0c0d0e0f101112131415161718191a1b1c"
    "1d1e1f20a4706c616e80a86d656d6f7269657380ac6f746865725f6d6f64656c7390"
)
"""The state that an earlier version has written at a promotion, with two machines."""


def test_standby_serves_what_its_coordinator_did_on_its_own_addresses() -> None:
    own = RunSettings(standby_of="plx1abc", listen="tcp://0.0.0.0:9100", port=8100, concurrency=2)
    goals = ClusterSettings(dtype="float32", concurrency=16, objective="latency")
    state = StandbyState(cluster=b"c", term=2, model="org/model", settings=goals)
    found = adopt_settings(own, state)
    assert (found.model, found.dtype, found.concurrency, found.objective) == ("org/model", "float32", 16, "latency")
    assert (found.listen, found.port, found.standby_of) == ("tcp://0.0.0.0:9100", 8100, "")
    for name in ClusterSettings.__struct_fields__:
        assert getattr(ClusterSettings(), name) == getattr(RunSettings(), name), "the usual values are the same"


DESK = StageLease(2, LayerRange(5, 30), 0.25)


def test_standby_begins_with_the_plan_of_its_coordinator_and_what_nodes_had_free() -> None:
    plan, memories = {1: [("kitchen/7", 0, 12, -1, 0, 12, 1.0), ("desk/1", 12, 30, 2, 5, 30, 0.25)]}, {"kitchen/7": 5}
    gone = {0: [("local/0", 0, 30, -1, 0, 30, 1.0)], **plan}, {"local/0": 9, **memories}
    found = recall_plan(StandbyState(cluster=b"c", term=2, model="org/model", plan=gone[0], memories=gone[1]))
    stages = (PlacedStage("kitchen/7", LayerRange(0, 12)), PlacedStage("desk/1", LayerRange(12, 30), DESK))
    assert (found.pipelines, found.memories) == ({1: stages}, memories)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path


def get_keys() -> MachineKeys:
    keys: object = get_method(PluginHost.discover(Config()), "zmq")
    assert isinstance(keys, MachineKeys)
    return keys


def take_over(state: StandbyState) -> MachineKeys:
    """Have this machine be the server of a cluster that it has taken over, and return its keys."""
    TermStore(term_file()).keep(state)
    listening = ServeSettings(model="m", listen="tcp://127.0.0.1:0")
    plugins = PluginHost.discover(Config())
    make_registry(listening, plugins.transports().get("zmq"), Path(), plugins, CodeAdmission())
    return get_keys()


STATE = StandbyState(cluster=b"c" * 16, term=2, model="m", machines={"studio": STUDIO, "mini": MINI})


@pytest.mark.usefixtures("home")
def test_machines_of_a_cluster_that_was_taken_over_are_kept_once_so_that_they_can_be_removed() -> None:
    assert take_over(STATE).list_machines() == {"studio": STUDIO, "mini": MINI}
    kept = TermStore(term_file()).find()
    assert kept == msgspec.structs.replace(STATE, machines={})
    get_keys().take_over({}, {MINI: "mini"}, {})  # as `parallax keys remove` does
    assert take_over(kept).list_machines() == {"studio": STUDIO}


@pytest.mark.usefixtures("home")
def test_machines_that_may_be_servers_stay_so_once() -> None:
    state = msgspec.structs.replace(STATE, servers={"mini": MINI, "server-1": DESK_KEY}, removed={STUDIO: "studio"})
    keys = take_over(state)
    assert [keys.find_role(key) for key in (MINI, DESK_KEY, STUDIO)] == ["any", "any", None]
    kept = TermStore(term_file()).find()
    assert kept == msgspec.structs.replace(STATE, machines={})
    keys.take_over({}, {DESK_KEY: "server-1"}, {})
    assert take_over(kept).find_role(DESK_KEY) is None


@pytest.mark.usefixtures("home")
def test_machine_that_was_removed_is_not_inherited() -> None:
    keys = take_over(msgspec.structs.replace(STATE, removed={MINI: "mini", DESK_KEY: "desk"}))
    assert keys.list_machines() == {"studio": STUDIO}
    assert keys.list_removed() == {MINI: "mini", DESK_KEY: "desk"}


def test_home_of_an_earlier_version_keeps_its_machines(home: Path) -> None:
    known = home / "keys" / "known"
    for folder in (known.parent, known):
        folder.mkdir(mode=0o700)
    (known / "old.pub").write_text(f"{DESK_KEY.hex()} worker\n")
    (known / "old.pub").chmod(0o600)
    term_file().parent.mkdir()
    term_file().write_bytes(FORMER)
    state = read_state(FORMER)
    assert (state.term, state.machines, state.removed) == (2, {"studio": STUDIO, "mini": MINI}, {})
    assert take_over(state).list_machines() == {"old": DESK_KEY, "studio": STUDIO, "mini": MINI}


class FullKeys:
    """Keys on a full disk."""

    def list_machines(self) -> dict[str, bytes]:
        return {}

    def list_removed(self) -> dict[bytes, str]:
        return {}

    def find_role(self, key: bytes) -> NodeRole | None:
        return None

    def take_over(self, machines: object, removed: object, servers: object) -> None:
        raise ParallaxError("the disk is full")


@pytest.mark.usefixtures("home")
def test_machines_that_cannot_be_kept_are_tried_again_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    TermStore(term_file()).keep(STATE)
    adopt_machines(FullKeys())
    assert "machines of the former server may be unknown here: the disk is full" in caplog.text
    assert TermStore(term_file()).find() == STATE


class SomeKeys(FullKeys):
    """Keys of machines, of which some were removed."""

    def list_machines(self) -> dict[str, bytes]:
        return {"studio": STUDIO}

    def list_removed(self) -> dict[bytes, str]:
        return {MINI: "mini"}


class Coordinator:
    """A coordinator without a plan."""

    def __init__(self) -> None:
        self.plan = cast("Any", type("Plan", (), {"pipelines": {}}))
        self.ended: list[str] = []

    def end(self, reason: str) -> None:
        self.ended.append(reason)


@pytest.mark.usefixtures("home")
async def test_standby_is_told_all_machines_that_may_join_and_those_that_were_removed() -> None:
    TermStore(term_file()).keep(msgspec.structs.replace(STATE, machines={"mini": MINI, "desk": DESK_KEY}))
    async with open_registry() as registry, joined(registry, Node("a")):
        await until(lambda: registry.has("a"))
        registry.keys = SomeKeys()
        settings, coordinator = RunSettings(model="m"), cast("Any", Coordinator())
        told = ToldState(settings, coordinator, dict, tuple)
        state = told.describe(open_own_term(settings, b"key").state, registry)
    assert state.machines == {"studio": STUDIO, "desk": DESK_KEY}
    assert state.removed == {MINI: "mini"}


def test_server_from_which_another_took_over_is_refused_before_it_loads_a_model(home: Path) -> None:
    settings = RunSettings(model="org/model")
    check_taken_over(settings)
    own = open_own_term(settings, b"key")
    own.accept(AcceptedStandby(machine="one", key=ONE.key, signer=ONE.signer))
    check_taken_over(settings)
    own.hear(write_proof(ONE.take_over(own.proof)))
    with pytest.raises(ParallaxError, match="its term is 2, and that of this one was 1"):
        check_taken_over(settings)
    check_taken_over(replace(settings, new_term=True))
    assert open_own_term(replace(settings, new_term=True), b"key").state.term == 3
    check_taken_over(settings)
    assert open_own_term(settings, b"key").state.term == 3
    assert (home / "cluster" / "signing.key").stat().st_mode & 0o777 == 0o600
