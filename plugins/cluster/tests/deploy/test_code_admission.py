"""How a head admits machines by codes: what it offers those that join, and to whom it listens."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy import code_admission as module
from parallax_cluster.deploy.backup import hold_state
from parallax_cluster.deploy.code_admission import CodeAdmission, plan, selects
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.relay.directory import RelayDirectory
from parallax_core.api import Admission, ParallaxError
from parallax_core.base.ids import HEAD
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.transport import TransportPlan
from parallax_core.deploy.kinds import ServeRequest
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.plugins.host import PluginHost
from tests.support.node_services import equip

LISTEN = "tcp://127.0.0.1:0"


class EnrollingTransport(InProcessTransport):
    """A transport that notes who decides which machines it admits."""

    def __init__(self) -> None:
        super().__init__(TransportPlan(node=HEAD, listen="inprocess://head"))
        self.admissions: list[Admission] = []

    def enrol_by(self, admission: Admission) -> None:
        self.admissions.append(admission)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return PluginHost.prepare(Config())


class Head:
    """A head that was equipped by its settings."""

    def __init__(self, plugins: PluginHost, admission: CodeAdmission, **given: Any) -> None:
        self.transport = EnrollingTransport()
        self.registry = equip(NodeRegistry(self.transport, HEAD))
        self.settings = ServeSettings(model="m", **given)
        self.offer = plugins.transports().get("zmq")
        admission.equip(self.registry, self.transport, self.offer, self.settings)


def test_head_without_an_address_admits_nobody(plugins: PluginHost) -> None:
    head = Head(plugins, CodeAdmission())
    assert head.transport.admissions == []
    assert "rendezvous" not in head.registry.purposes
    assert head.registry.keys is None


def test_head_that_listens_admits_by_the_codes_of_its_machine(plugins: PluginHost) -> None:
    head = Head(plugins, CodeAdmission(), listen=LISTEN)
    [admission] = head.transport.admissions
    assert isinstance(admission, CodeStore)
    assert head.registry.keys is not None
    assert not head.registry.purposes["rendezvous"].must_have_joined, "who looks for a head has not joined it"


def test_head_admits_as_it_is_told(plugins: PluginHost) -> None:
    told = CodeStore(cluster_file())
    assert Head(plugins, CodeAdmission(told), listen=LISTEN).transport.admissions == [told]


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("listen", [None, LISTEN])
def test_head_relays_if_it_is_told_to(plugins: PluginHost, listen: str | None, *, relay: bool) -> None:
    head = Head(plugins, CodeAdmission(), listen=listen, relay=relay)
    assert (head.registry.services.find(RelayDirectory).server is not None) == relay


@pytest.mark.parametrize("discovery", [False, True])
async def test_place_of_a_head_is_noted_and_its_state_in_use_while_it_listens(
    plugins: PluginHost, monkeypatch: pytest.MonkeyPatch, *, discovery: bool
) -> None:
    found: list[tuple[object, ...]] = []

    @asynccontextmanager
    async def being_found(*given: object) -> Any:
        found.append(given)
        yield

    monkeypatch.setattr(module, "being_found", being_found)
    get_method(plugins, "zmq").prepare(HEAD)
    head = Head(plugins, CodeAdmission(), listen="tcp://10.0.0.5:9000", discovery=discovery)
    async with CodeAdmission().listening(head.registry, head.offer, head.settings) as listening:
        assert listening is not None
        assert listening.transport == "zmq"
        assert CodeStore(cluster_file()).find_head() == listening
        assert len(found) == discovery
        with pytest.raises(ParallaxError), hold_state(alone=True):
            pass
    with hold_state(alone=True):
        pass


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({}, False),
        ({"stages": 1}, False),
        ({"stages": 2}, True),
        ({"listen": LISTEN}, True),
        ({"relay": True}, True),
    ],
)
def test_machines_may_join_or_stages_may_differ_where_codes_admit(
    plugins: PluginHost, given: dict[str, Any], *, selected: bool
) -> None:
    settings = ServeSettings(model="hf:org/model", **given)
    assert selects(settings) == selected
    stages = plan(ServeRequest(settings, plugins)).stages
    assert isinstance(stages.added.admission, CodeAdmission)
    assert stages.added.balance is not None
