from __future__ import annotations

import asyncio
from importlib.metadata import version

import pytest
from msgspec.structs import replace

from parallax_core.api import Frame, IncompatibleNode, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import SoftwareNotes, check_versions, greet, welcome
from parallax_core.pages.version import PAGES_VERSION
from parallax_core.wire.codec import WIRE_VERSION, decode, encode
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


async def test_node_of_another_wire_version_learns_why_and_so_does_this_one() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    await near.send(other_wire(Hello(WIRE_VERSION, "near", "9.9.9")))
    ours, theirs = f"version {WIRE_VERSION}", f"version {WIRE_VERSION + 1}"
    words = rf"node 'near', with Parallax 9\.9\.9, uses {theirs} of the wire format, and this node, .*, {ours}"
    with pytest.raises(IncompatibleNode, match=words) as caught:
        await soon(welcome(Channel(await far.accept()), "far"))
    assert "same version of Parallax" in caught.value.hint
    answer = decode(await soon(near.receive()))
    assert answer == Welcome(WIRE_VERSION, "far", version("parallax-core"), PAGES_VERSION)
    with pytest.raises(PeerLost):
        await soon(near.receive())
    await far.stop()


async def test_answer_of_another_wire_version_names_both() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    await (await far.accept()).send(other_wire(Welcome(WIRE_VERSION, "far", "9.9.9")))
    with pytest.raises(IncompatibleNode, match=rf"node 'far', with Parallax 9\.9\.9, uses version {WIRE_VERSION + 1} "):
        await soon(greet(Channel(near), "near"))
    await far.stop()


async def test_frame_of_another_version_after_the_greeting_is_not_answered() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    channel = Channel(await far.accept())
    await asyncio.gather(greet(Channel(near), "near"), welcome(channel, "far"))
    await near.send(other_wire(Hello(WIRE_VERSION, "near", "9.9.9")))
    with pytest.raises(IncompatibleNode):
        await soon(channel.receive())
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


def test_other_software_is_said_once_for_each_machine(caplog: pytest.LogCaptureFixture) -> None:
    notes, ours = SoftwareNotes(), version("parallax-core")
    for node, software in (("near/1", "0.0.9"), ("near/2", "0.0.9"), ("far/1", ours), ("far/1", "0.0.9")):
        notes.note(Hello(WIRE_VERSION, node, software, PAGES_VERSION))
    words = "node runs another version of Parallax node={} theirs=0.0.9 ours={}"
    assert caplog.messages == [words.format(node, ours) for node in ("near/1", "far/1")]


async def test_links_say_nothing_of_other_software(caplog: pytest.LogCaptureFixture) -> None:
    near, far, node = await link()
    await near.send(Hello(WIRE_VERSION, "near", "0.0.9", PAGES_VERSION, "probe"))
    await soon(welcome(far, "far"))
    assert not caplog.records
    await node.stop()


def other_wire(message: Hello | Welcome) -> Frame:
    """Return a frame of the next version of the wire format, whose greetings may have further fields."""
    header = encode(message).header
    return Frame(bytes([WIRE_VERSION + 1, header[1] + 1]) + header[2:] + b"\xc0")
