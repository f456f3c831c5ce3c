from __future__ import annotations

import asyncio

import pytest

from parallax_core.api import PeerLost
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.channel import Channel
from parallax_core.node.membership.served_links import ServedLinks
from tests.unit.node.cluster import call, open_registry, soon, until

FOR_ALL = {"standby", "rendezvous", "offer"}
"""The purposes for which a node need not have joined."""
PURPOSES = (*sorted(FOR_ALL), "probe", "api", "relay", "stream", "direct", "others")


async def test_links_are_served_that_have_a_purpose_and_may_be_there() -> None:
    served = list[str]()

    async def serve(channel: Channel) -> None:
        served.append(channel.peer)

    async with open_registry() as registry:
        channel = await call(registry, "mini")
        for has_joined in (False, True):
            links = ServedLinks(lambda _, has_joined=has_joined: has_joined)  # type: ignore[misc]
            with pytest.raises(PeerLost, match="asked for a link that it may not have here"):
                links.open(channel, "api")
            for purpose in PURPOSES:
                links.purposes[purpose] = LinkPurpose(serve=serve, must_have_joined=purpose not in FOR_ALL)
                if has_joined or purpose in FOR_ALL:
                    links.open(channel, purpose)
                    continue
                with pytest.raises(PeerLost, match="asked for a link that it may not have here"):
                    links.open(channel, purpose)
            await until(lambda links=links: not links.running)  # type: ignore[misc]
        assert len(served) == len(FOR_ALL) + len(PURPOSES)


async def test_error_of_a_service_is_logged_and_the_loss_of_its_peer_is_not(caplog: pytest.LogCaptureFixture) -> None:
    errors = [RuntimeError("it broke"), PeerLost("it is gone")]

    async def serve(_: Channel) -> None:
        raise errors.pop()

    async with open_registry() as registry:
        channel, links = await call(registry, "mini"), ServedLinks(lambda _: True)
        links.purposes["api"] = LinkPurpose(serve=serve)
        for _ in range(len(errors)):
            links.open(channel, "api")
            await soon(asyncio.wait(links.running))
        await until(lambda: not links.running)
    assert caplog.text.count("connection of a joined machine's client ended") == 1
