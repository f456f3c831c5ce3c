"""Nodes that have joined and say only what a test has them say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_core.node.channel import Channel
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join
from tests.unit.node.cluster import call, open_registry, until

JOIN = Join("inprocess://x", (), "here", 7)


async def add_node(registry: NodeRegistry, name: str) -> Channel:
    """Have a node join; return its end of the link."""
    channel = await call(registry, name)
    await channel.send(JOIN)
    await until(lambda: name in {node.name for node in registry.waiting})
    return channel


@asynccontextmanager
async def taken_node(name: str = "attic") -> AsyncIterator[tuple[JoinedNode, Channel]]:
    """Yield a node that its head has taken for a stage, and the node's end of the link."""
    async with open_registry() as registry:
        channel = await add_node(registry, name)
        yield await registry.find(lambda _: 1), channel
