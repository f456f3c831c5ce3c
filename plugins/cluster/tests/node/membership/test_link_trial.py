from __future__ import annotations

import asyncio

import pytest

from parallax_cluster.node.membership import link_trial as module
from parallax_cluster.node.membership.link_trial import try_link
from parallax_cluster.wire.profile import LinkTried
from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.loading import LinkFailed
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Refusal
from tests.unit.node.cluster import joined, open_registry, soon
from tests.unit.node.parted import Walls


def find(registry: NodeRegistry, *names: str) -> list[JoinedNode]:
    nodes = {node.name: node for node in registry.joined}
    return [nodes[name] for name in names]


async def test_link_is_tried_in_one_direction() -> None:
    walls = Walls({("b", "a")})
    nodes = walls.build("a", "b")
    async with open_registry() as registry, joined(registry, *nodes.values()):
        a, b = find(registry, "a", "b")
        assert await soon(try_link(a, b)) == LinkTried("b", is_reached=True)
        told = await soon(try_link(b, a))
        assert told is not None
        assert (told.is_reached, told.reason) == (False, "no node answers at a")


async def test_two_who_ask_at_once_get_one_answer() -> None:
    nodes = Walls().build("a", "b")
    async with open_registry() as registry, joined(registry, *nodes.values()):
        a, b = find(registry, "a", "b")
        one, other = await soon(asyncio.gather(try_link(a, b), try_link(a, b)))
        assert one == other == LinkTried("b", is_reached=True)


async def test_node_that_is_gone_or_silent_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Walls().build("a", "b")
    async with open_registry() as registry, joined(registry, *nodes.values()):
        a, b = find(registry, "a", "b")
        monkeypatch.setattr(module, "ANSWER_S", 0.05)
        taken = await soon(registry.find(lambda node: node.name == "a"))  # nobody receives what it says
        assert await soon(try_link(taken, b)) is None
        monkeypatch.setattr(module, "ANSWER_S", 60.0)
        asking = asyncio.create_task(try_link(taken, b))
        await nodes["b"].kill()
        assert await soon(asking) is None
        assert await soon(try_link(b, a)) is None


async def test_refusal_of_a_hop_says_which_link_failed() -> None:
    nodes = Walls().build("a", "b", "c")
    async with open_registry() as registry, joined(registry, *nodes.values()):
        a, b, c = find(registry, "a", "b", "c")
        refusal = Refusal(Epoch(1), 1, "it has no links", "look there", unreached="c")
        failed = LinkFailed.find(b, a, c, refusal)
        assert isinstance(failed, LinkFailed)
        assert (failed.ends, failed.message, failed.hint) == (("b", "c"), "it has no links", "look there")
        waited = LinkFailed.find(b, a, c, Refusal(Epoch(1), 1, "neighbours did not connect"))
        assert isinstance(waited, LinkFailed)
        assert waited.ends == ("a", "b")
        assert type(LinkFailed.find(a, None, b, Refusal(Epoch(1), 0, "?"))) is ParallaxError
