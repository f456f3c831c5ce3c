"""A head of the real transport is found by those who know a code of it, or its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.discovery import being_found, find_discovery, find_head
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.base.ids import HEAD
from parallax_core.base.offline import OFFLINE_VARIABLE
from parallax_core.builtin.plugin import parallax_register_transports
from parallax_core.config.config import Config
from parallax_core.contracts.transport import TransportSpec
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

ADDRESS = "tcp://127.0.0.1:9"
FOUND_S, SILENCE_S = 10.0, 0.5


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer[TransportSpec]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    plugins = PluginHost.prepare(Config())
    get_method(plugins, "zmq").prepare(HEAD)
    return plugins.transports().get("zmq")


async def test_head_is_found_by_its_codes_and_its_key(offer: Offer[TransportSpec]) -> None:
    discovery, method = find_discovery(offer), get_method(PluginHost.prepare(Config()), "zmq")
    assert discovery is not None
    CodeStore(cluster_file()).add(b"proof", 60.0, 1)
    async with being_found(offer, "tcp://127.0.0.1:0", ADDRESS):
        head = await find_head(discovery, b"proof", FOUND_S)
        assert head == method.describe_head(HEAD, ADDRESS)
        assert await find_head(discovery, method.find_key(head), FOUND_S) == head
        assert await find_head(discovery, b"another proof", SILENCE_S) is None
    assert await find_head(discovery, b"proof", SILENCE_S) is None


async def test_code_made_later_finds_the_head(offer: Offer[TransportSpec]) -> None:
    discovery = find_discovery(offer)
    assert discovery is not None
    async with being_found(offer, ADDRESS):
        assert await find_head(discovery, b"proof", SILENCE_S) is None
        CodeStore(cluster_file()).add(b"proof", 60.0, 1)
        assert await find_head(discovery, b"proof", FOUND_S) is not None


async def test_nobody_is_found_or_looked_for_offline(
    offer: Offer[TransportSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery = find_discovery(offer)
    assert discovery is not None
    CodeStore(cluster_file()).add(b"proof", 60.0, 1)
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    assert find_discovery(offer) is None
    async with being_found(offer, ADDRESS):
        assert await find_head(discovery, b"proof", SILENCE_S) is None


async def test_head_that_no_other_machine_can_join_is_not_found(offer: Offer[TransportSpec], tmp_path: Path) -> None:
    async with being_found(offer, f"ipc://{tmp_path}/head.sock"):
        pass
    [spec] = parallax_register_transports()
    alone = replace(offer, spec=spec)
    assert find_discovery(alone) is None
    async with being_found(alone, ADDRESS):
        pass
