from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from parallax_core.contracts.node_service import NodeService


async def test_service_that_overrides_nothing_does_nothing() -> None:
    service, peer = NodeService(), SimpleNamespace(name="attic/1")
    assert (dict(service.purposes), service.is_needed) == ({}, False)
    asked: Any = peer
    async with service.joined(asked) as takers:
        assert not takers
