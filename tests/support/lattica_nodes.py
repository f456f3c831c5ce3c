"""Nodes for the tests of the transport over lattica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from parallax_core.api import TransportPlan
from parallax_transport_lattica.process import PeerProcess
from parallax_transport_lattica.transport import LatticaTransport
from parallax_transport_zmq.link import ZmqLink

LOOPBACK = "lattica://127.0.0.1:0"


def plan_node(node: str, listen: str = "", timeout_s: float = 8.0, credit: int = 4) -> TransportPlan:
    return TransportPlan(node=node, listen=listen, timeout_s=timeout_s, credit=credit)


@asynccontextmanager
async def started(plan: TransportPlan) -> AsyncIterator[LatticaTransport]:
    transport = LatticaTransport(plan)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop()


async def join(near: LatticaTransport, far: LatticaTransport) -> tuple[ZmqLink, ZmqLink]:
    """Link two nodes, the second of which is named ``far``; return the links of ``near`` and ``far``."""
    there, here = await asyncio.gather(far.accept(), near.connect(far.address, "far"))
    return here, there


@contextmanager
def noted_processes() -> Iterator[list[PeerProcess]]:
    """Yield the processes of peers that nodes start meanwhile, the newest last."""
    start, found = PeerProcess.start, list[PeerProcess]()

    async def note(settings: Mapping[str, Any]) -> tuple[PeerProcess, dict[str, Any]]:
        process, ready = await start(settings)
        found.append(process)
        return process, ready

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeerProcess, "start", note)
        yield found
