from __future__ import annotations

import asyncio

import pytest

from parallax_core.api import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.node.membership.served_links import ServedLinks
from tests.unit.node.cluster import call, open_registry, soon, until


async def test_links_are_served_that_have_a_purpose_and_may_be_there(caplog: pytest.LogCaptureFixture) -> None:
    served, may_end = list[str](), asyncio.Event()

    async def serve(channel: Channel) -> None:
        served.append(channel.peer)
        await may_end.wait()
        raise RuntimeError("it broke")

    async with open_registry() as registry:
        links = ServedLinks({"mini"}.__contains__)
        links.services.update({"api": serve, "rendezvous": serve})
        mini, stranger = await call(registry, "mini"), await call(registry, "stranger")
        for channel, purpose in ((stranger, "api"), (mini, "relay")):
            with pytest.raises(PeerLost, match="wants what it may not have here"):
                links.open(channel, purpose)  # type: ignore[arg-type]
        links.open(mini, "api")
        links.open(stranger, "rendezvous")
        await until(lambda: served == ["mini", "stranger"])
        assert len(links.running) == len(served)
        may_end.set()
        await soon(asyncio.wait(links.running))
        await until(lambda: not links.running)
    assert caplog.text.count("connection of a joined machine's client ended") == len(served)
