from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from parallax_core.api import Frame, ParallaxError, PeerLost, TransportPlan
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.message import Hello
from parallax_transport_zmq.transport import ZmqTransport
from tests.zmq_nodes import LOOPBACK, join, plan_node, started, stretched

EVERYWHERE = "tcp://0.0.0.0:0"
SECRET = b"the capital of France is"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Keyring:
    """Give the keys of another machine."""
    return Keyring(tmp_path / "elsewhere" / "keys")


def make_there(plan: TransportPlan, ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> ZmqTransport:
    """Return a transport of another machine."""
    with monkeypatch.context() as patch:
        patch.setenv("PARALLAX_HOME", str(ring.folder.parent))
        return ZmqTransport(plan)


async def reach(transport: ZmqTransport, address: str) -> ZmqLink:
    """Start a transport, make a link to ``far``, and stop it if there is none."""
    await transport.start()
    try:
        return await transport.connect(address, "far")
    except BaseException:
        await transport.stop()
        raise


@pytest.mark.parametrize("address", [EVERYWHERE, "tcp://[::]:0", "tcp://*:0"])
async def test_listening_off_loopback_needs_a_key(address: str) -> None:
    with pytest.raises(ParallaxError, match=r"cannot listen at .*, off loopback, without a key") as caught:
        async with started(plan_node("far", address)):
            pass
    assert "parallax keys new" in caught.value.hint


async def test_connecting_off_loopback_needs_a_key(ring: Keyring) -> None:
    async with started(plan_node("near")) as near:
        with pytest.raises(ParallaxError, match="'near' has no key") as caught:
            await near.connect("tcp://192.0.2.1:5000", "far")
        assert "parallax keys new" in caught.value.hint
        ring.make("near")
        with pytest.raises(ParallaxError, match="no key of node 'far'") as caught:
            await near.connect("tcp://192.0.2.1:5000", "far")
        assert "parallax keys allow PUBLIC_KEY far" in caught.value.hint


async def test_host_that_does_not_answer_is_a_loss_in_time(ring: Keyring) -> None:
    ring.make("default")
    async with started(plan_node("near", timeout_s=0.5)) as near:
        begin = asyncio.get_running_loop().time()
        with pytest.raises(PeerLost, match=r"node 'far' at tcp://192.0.2.1:5000|nobody answers"):
            await near.connect("tcp://192.0.2.1:5000", "far")
        assert asyncio.get_running_loop().time() - begin < 5


async def test_machines_that_allow_each_other_are_linked(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("default").public, "far")
    ring.allow(elsewhere.make("default").public, "near")
    async with started(plan_node("far", EVERYWHERE)) as far:
        assert not far.address.startswith("tcp://0.0.0.0")
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        accepting = asyncio.create_task(far.accept())
        link = await reach(near, far.address)
        there = await accepting
        await link.send(Frame(b"x", (SECRET,)))
        assert (await there.receive()).buffers[0] == SECRET
        await near.stop()


async def test_wire_with_keys_shows_nothing_and_without_everything(ring: Keyring) -> None:
    heard = {}
    for has_keys in (False, True):
        if has_keys:
            ring.make("default")
        async with (
            started(plan_node("far", LOOPBACK)) as far,
            started(plan_node("near")) as near,
            stretched(far.address) as wire,
        ):
            here, there = await join(near, far, wire.address)
            await here.send(Frame(b"x", (SECRET * 10_000,)))
            await there.receive()
            heard[has_keys] = bytes(wire.heard)
    assert SECRET in heard[False]
    assert SECRET not in heard[True]
    assert len(heard[True]) > 10_000 * len(SECRET)
    assert b"near" not in heard[True]


async def test_key_that_is_not_allowed_gets_no_link(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    key = elsewhere.make("near").public
    async with started(plan_node("far", LOOPBACK)) as far:
        for node in ("near", "near/7"):
            near = make_there(plan_node(node), elsewhere, monkeypatch)
            with caplog.at_level(logging.WARNING), pytest.raises(PeerLost, match="does not know the key") as caught:
                await reach(near, far.address)
            assert f"parallax keys allow {key.hex()} near" in caught.value.hint
    assert [key.hex() in message for message in caplog.messages] == [True]


async def test_allowed_key_of_another_name_gets_no_link(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    ring.allow(elsewhere.make("default").public, "other")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        with pytest.raises(PeerLost, match="its key is not one of node 'near'"):
            await reach(near, far.address)


async def test_node_with_another_key_than_known_is_not_believed(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.make("far")
    elsewhere.allow(bytes(range(32)), "far")
    ring.allow(elsewhere.make("near").public, "near")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near", timeout_s=2), elsewhere, monkeypatch)
        with pytest.raises(PeerLost) as caught:
            await reach(near, far.address)
        assert "key" in caught.value.hint


@pytest.mark.parametrize("pause_s", [0, 0.002, 0.02])
async def test_node_without_a_key_gets_no_link_where_keys_are(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    def pack(hello: Hello, pack: Callable[[Hello], bytes] = Hello.pack) -> bytes:
        time.sleep(pause_s)  # it may be refused meanwhile, before it has said anything
        return pack(hello)

    monkeypatch.setattr(Hello, "pack", pack)
    ring.make("far")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near", timeout_s=2), elsewhere, monkeypatch)
        with pytest.raises(PeerLost) as caught:
            await reach(near, far.address)
        assert "parallax keys new" in caught.value.hint


async def test_node_with_a_key_links_to_none_without(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.make("default")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near", timeout_s=2), elsewhere, monkeypatch)
        with pytest.raises(PeerLost):
            await reach(near, far.address)
        async with started(plan_node("plain")) as plain:
            await join(plain, far)


async def test_removed_key_gets_no_further_link(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    ring.allow(elsewhere.make("near").public, "near")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        await reach(near, far.address)
        ring.remove("near", own=False)
        with pytest.raises(PeerLost, match="does not know the key"):
            await near.connect(far.address, "far")
        await near.stop()


async def test_stranger_with_a_key_of_its_own_is_never_heard(ring: Keyring) -> None:
    """Below the transport: ZeroMQ itself passes on nothing of who has no allowed key."""
    server = ring.make("far").public
    async with started(plan_node("far", LOOPBACK)) as far:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = server
            stranger.connect(far.address)
            assert far._listener
            heard: list[object] = []
            monitor = far._listener._pump._hear
            far._listener._pump._hear = heard.append
            stranger.send(b"hello")
            await asyncio.sleep(0.5)
            assert not heard
            far._listener._pump._hear = monitor
        context.term()


async def test_damaged_key_lets_nobody_in_and_stops_no_other(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    ring.allow(elsewhere.make("near").public, "near")
    ring.allow(bytes(32), "bad")
    (home / "keys/known/bad.pub").write_text("damaged")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        await reach(near, far.address)
        (home / "keys/known/near.pub").write_text("damaged")
        with pytest.raises(PeerLost, match="does not know the key"):
            await near.connect(far.address, "far")
        await near.stop()
