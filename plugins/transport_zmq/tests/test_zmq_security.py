from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from parallax_core.api import Frame, ParallaxError, PeerLost, TransportPlan
from parallax_transport_zmq import listener
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.message import Hello
from parallax_transport_zmq.pump import Pump
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK, join, plan_node, started, stretched

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
        with pytest.raises(PeerLost, match=r"node 'far' at tcp://192.0.2.1:5000|no node answers"):
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


async def test_wire_shows_nothing_although_nobody_made_a_key(ring: Keyring) -> None:
    async with (
        started(plan_node("far", LOOPBACK)) as far,
        started(plan_node("near")) as near,
        stretched(far.address) as wire,
    ):
        here, there = await join(near, far, wire.address)
        await here.send(Frame(b"x", (SECRET * 10_000,)))
        await there.receive()
        heard = bytes(wire.heard)
    assert SECRET not in heard
    assert len(heard) > 10_000 * len(SECRET)
    assert b"near" not in heard
    pair = ring.find_pair("anybody")
    assert pair
    assert here.key == there.key == pair.public


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
async def test_other_user_of_this_machine_gets_no_link(
    elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    def pack(hello: Hello, pack: Callable[[Hello], bytes] = Hello.pack) -> bytes:
        time.sleep(pause_s)  # it may be refused meanwhile, before it has said anything
        return pack(hello)

    monkeypatch.setattr(Hello, "pack", pack)
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near", timeout_s=2), elsewhere, monkeypatch)
        with pytest.raises(PeerLost) as caught:
            await reach(near, far.address)
        assert "parallax keys" in caught.value.hint
        assert far.measure().links == 0


async def test_other_user_who_knows_the_public_key_gets_no_link_either(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(plan_node("far", LOOPBACK)) as far:
        pair = ring.find_pair("far")
        assert pair
        elsewhere.allow(pair.public, "far")
        near = make_there(plan_node("near", timeout_s=2), elsewhere, monkeypatch)
        with pytest.raises(PeerLost, match="does not know the key"):
            await reach(near, far.address)
        assert far.measure().links == 0


async def test_process_without_any_key_is_never_heard() -> None:
    async with started(plan_node("far", LOOPBACK)) as far:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(far.address)
            stranger.send(Hello("near", "far", 4).pack())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(far.accept(), 0.5)
        context.term()


async def test_key_that_is_removed_loses_its_links_and_gets_no_further_one(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    ring.allow(elsewhere.make("near").public, "near")
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("friend")) as friend:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        here, there = await reach(near, far.address), await far.accept()
        kept, _ = await join(friend, far)
        ring.remove("near", own=False)
        with pytest.raises(PeerLost, match="its key is no longer allowed"):
            await asyncio.wait_for(there.receive(), 5)
        with pytest.raises(PeerLost, match="your key is no longer allowed"):
            await asyncio.wait_for(here.receive(), 5)
        with pytest.raises(PeerLost, match="does not know the key"):
            await near.connect(far.address, "far")
        await near.stop()
        await kept.send(Frame(b"x"))


async def test_node_lets_go_of_whom_it_trusts_no_longer_although_it_made_the_link(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("far").public, "far", "head")
    ring.allow(elsewhere.make("near").public, "near", "worker")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        here, there = await reach(near, far.address), await far.accept()
        assert (here.role, there.role) == ("head", "worker")
        elsewhere.remove("far", own=False)
        with pytest.raises(PeerLost, match="its key is no longer allowed"):
            await asyncio.wait_for(here.receive(), 5)
        await near.stop()


async def test_link_whose_key_gets_another_role_ends(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    ring.allow(elsewhere.make("near").public, "near")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        _, there = await reach(near, far.address), await far.accept()
        ring.allow(there.key, "near", "head")
        with pytest.raises(PeerLost, match="its key is no longer allowed"):
            await asyncio.wait_for(there.receive(), 5)
        await near.stop()


async def test_folder_of_keys_that_others_can_write_is_refused_at_the_start(ring: Keyring, home: Path) -> None:
    ring.make("default")
    (home / "keys").chmod(0o770)
    with pytest.raises(ParallaxError, match="other users can write to"):
        async with started(plan_node("far", LOOPBACK)):
            pass
    async with started(plan_node("near")) as near:
        with pytest.raises(ParallaxError, match="other users can write to"):
            await near.connect("tcp://127.0.0.1:1", "far")


async def test_own_key_that_is_removed_ends_links_of_the_machines_that_share_it(ring: Keyring) -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        _, there = await join(near, far)
        ring.remove("default", own=True)
        with pytest.raises(PeerLost, match=r"(its|your) key is no longer allowed"):
            await asyncio.wait_for(there.receive(), 5)


async def test_stranger_with_a_key_of_its_own_is_never_heard(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the transport: ZeroMQ itself passes on nothing of who has no allowed key."""
    heard: list[object] = []
    monkeypatch.setattr(listener, "Pump", lambda socket, _: Pump(socket, heard.append))
    server = ring.make("far").public
    async with started(plan_node("far", LOOPBACK)) as far:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = server
            stranger.connect(far.address)
            stranger.send(b"hello")
            await asyncio.sleep(0.5)
            assert not heard
        context.term()


async def test_damaged_key_lets_nobody_in_and_stops_no_other(
    ring: Keyring, elsewhere: Keyring, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    elsewhere.allow(ring.make("far").public, "far")
    key = elsewhere.make("near").public
    ring.allow(key, "near")
    ring.allow(bytes(32), "bad")
    (home / "keys/known/bad.pub").write_text("damaged")
    async with started(plan_node("far", LOOPBACK)) as far:
        near = make_there(plan_node("near"), elsewhere, monkeypatch)
        await reach(near, far.address)
        (home / "keys/known/near.pub").write_text("damaged")
        async with asyncio.timeout(10):
            with pytest.raises(PeerLost, match=r"does not know the key|its key is not one of"):  # noqa: PT012 -- until it is noticed
                while True:
                    await (await near.connect(far.address, "far")).close()
        await near.stop()
