from __future__ import annotations

import asyncio

import pytest

from parallax_core.api import Data, Frame
from parallax_transport_zmq.link import RECENT_S, Peer, ZmqLink
from parallax_transport_zmq.message import Kind
from tests.support.zmq_nodes import plan_node


class RecordingLine:
    """Keeps the kinds of messages that a link posts."""

    def __init__(self) -> None:
        self.kinds: list[bytes] = []

    def post(self, message: Data) -> None:
        self.kinds.append(bytes(message)[:1])

    def post_threadsafe(self, message: Data) -> None:
        self.post(message)

    def hang_up(self) -> None:
        self.kinds.clear()


async def test_heartbeat_is_left_out_if_something_was_just_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    line, now = RecordingLine(), 100.0
    link = ZmqLink(plan_node("near"), line, Peer("far", 4))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT]
    await link.send(Frame(b"x"))
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT, Kind.FRAME]
    now += 2 * RECENT_S
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT, Kind.FRAME, Kind.BEAT]
