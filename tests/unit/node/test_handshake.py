from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import check_versions, greet, welcome
from parallax_core.pages.version import PAGES_VERSION
from parallax_core.wire.codec import WIRE_VERSION, encode
from parallax_core.wire.messages import Hello, Welcome
from tests.unit.node.cluster import soon


async def link() -> tuple[Channel, Channel, InProcessTransport]:
    """Return both ends of a link from ``near`` to ``far``."""
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    there = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    return Channel(there), Channel(await far.accept()), far


async def test_both_say_who_they_are() -> None:
    near, far, node = await link()
    said, heard = await asyncio.gather(greet(near, "near"), welcome(far, "far"))
    assert (said.node, said.wire, heard.node) == ("far", WIRE_VERSION, "near")
    await node.stop()


async def test_who_does_not_greet_as_the_link_is_called_is_refused() -> None:
    near, far, node = await link()
    await near.send(Hello(WIRE_VERSION, "somebody else", "0.1.0"))
    with pytest.raises(PeerLost, match="node 'near' did not greet"):
        await soon(welcome(far, "far"))
    await node.stop()


async def test_answer_that_is_none_is_refused() -> None:
    near, far, node = await link()
    await far.send(Hello(WIRE_VERSION, "far", "0.1.0"))
    with pytest.raises(PeerLost, match="answered a greeting with a Hello"):
        await soon(greet(near, "near"))
    await node.stop()


async def test_other_version_is_told_and_ends_the_link() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    hello = encode(Hello(WIRE_VERSION, "near", "9.9.9"))
    await near.send(Frame(bytes([WIRE_VERSION + 1]) + hello.header[1:]))
    with pytest.raises(PeerLost, match=f"version {WIRE_VERSION + 1} of the wire format, this node version"):
        await soon(welcome(Channel(await far.accept()), "far"))
    with pytest.raises(PeerLost):
        await soon(near.receive())
    await far.stop()


async def test_welcome_out_of_turn_is_no_greeting() -> None:
    near, far, node = await link()
    await near.send(Welcome(WIRE_VERSION, "near", "0.1.0"))
    with pytest.raises(PeerLost, match="did not greet"):
        await soon(welcome(far, "far"))
    await node.stop()


@pytest.mark.parametrize("theirs", [0, PAGES_VERSION + 1])
async def test_node_that_counts_pages_otherwise_is_refused_by_both_in_words(theirs: int) -> None:
    near, far, node = await link()
    await near.send(Hello(WIRE_VERSION, "near", "9.9.9", theirs))
    words = f"'near', with Parallax 9.9.9, counts pages by version {theirs} of the rules, .* by version {PAGES_VERSION}"
    with pytest.raises(PeerLost, match=words) as caught:
        await soon(welcome(far, "far"))
    assert "same version of Parallax" in caught.value.hint
    answer = await soon(near.receive())
    assert isinstance(answer, Welcome)
    with pytest.raises(PeerLost, match="counts pages by version"):
        check_versions("far", replace(answer, pages=theirs))
    await node.stop()


async def test_other_software_is_said_and_served(caplog: pytest.LogCaptureFixture) -> None:
    near, far, node = await link()
    await near.send(Hello(WIRE_VERSION, "near", "0.0.9", PAGES_VERSION))
    await soon(welcome(far, "far"))
    assert "another version of Parallax node=near theirs=0.0.9" in caplog.text
    await node.stop()
