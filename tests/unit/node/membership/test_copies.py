from __future__ import annotations

import msgspec
import pytest

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.node.membership.copies import check_original
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join, Refusal
from tests.unit.node.cluster import call, open_registry, soon, until

JOIN = Join("inprocess://x", (), "vm", 7, place="here")


async def enter(registry: NodeRegistry, name: str, join: Join) -> Channel:
    channel = await call(registry, name)
    await channel.send(join)
    return channel


async def test_copy_of_a_machine_is_refused_by_name_and_the_machine_itself_may_have_several_nodes() -> None:
    async with open_registry() as registry:
        await enter(registry, "vm/7", JOIN)
        await enter(registry, "vm/8", JOIN)
        await enter(registry, "vm/9", msgspec.structs.replace(JOIN, place=""))
        await enter(registry, "other/7", msgspec.structs.replace(JOIN, place="there"))
        await until(lambda: len(registry.joined) == 4)
        copy = await enter(registry, "vm/10", msgspec.structs.replace(JOIN, host="clone", place="there"))
        refusal = await soon(copy.receive())
        assert isinstance(refusal, Refusal)
        assert (
            refusal.message
            == "machine 'vm' has joined on the host 'vm', and 'vm/10', on 'clone', is another with its keys"
        )
        assert "parallax keys remove --own default" in refusal.hint
        assert len(registry.joined) == 4


async def test_machine_joins_once_its_copy_has_left() -> None:
    async with open_registry() as registry:
        first = await enter(registry, "vm/7", JOIN)
        await until(lambda: len(registry.joined) == 1)
        await first.close()
        await until(lambda: not registry.joined)
        await enter(registry, "vm/7", msgspec.structs.replace(JOIN, place="there"))
        await until(lambda: len(registry.joined) == 1)


async def test_copy_with_the_same_host_name_is_told_apart() -> None:
    async with open_registry() as registry:
        await enter(registry, "vm/7", JOIN)
        await until(lambda: len(registry.joined) == 1)
        with pytest.raises(PeerLost, match="machine 'vm' has joined elsewhere"):
            check_original("vm/8", msgspec.structs.replace(JOIN, place="there"), registry.joined)
