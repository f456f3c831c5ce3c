from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from parallax_core.api import Data, Frame, PeerLost
from parallax_transport_zmq.arrivals import Arrivals
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


class SteadyArrivals(Arrivals):
    """A connection on which data always arrives."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def has_news(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return True


async def test_peer_whose_process_runs_may_be_silent_until_it_counts_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reports, plan = 100.0, [], replace(plan_node("near"), timeout_s=1.0, busy_s=3.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    link = ZmqLink(plan, RecordingLine(), Peer("far", 4, arrivals=SteadyArrivals()))
    link.monitor(lambda: reports.append(now))
    for _ in range(12):
        now += 0.25
        link.beat(0.25)
    assert not link.is_over
    assert len(reports) == 11  # after the first call, which follows its greeting
    now += 0.25
    link.beat(0.25)
    with pytest.raises(PeerLost, match="its process runs, but has sent nothing for 3 s"):
        await link.receive()


async def test_kernel_is_asked_about_silence_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now, arrivals = 100.0, SteadyArrivals()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    link = ZmqLink(plan_node("near"), RecordingLine(), Peer("far", 4, arrivals=arrivals))
    now = 100.5
    link.beat(0.1)  # heard: its greeting
    assert arrivals.asked == []
    now = 102.0
    link.beat(0.1)
    assert arrivals.asked == [1.5]


async def test_link_that_another_thread_ends_says_why_at_both_ends() -> None:
    line = RecordingLine()
    link = ZmqLink(plan_node("near"), line, Peer("far", 4))
    await asyncio.to_thread(link.part_threadsafe, "its loop hangs")
    await asyncio.to_thread(link.part_threadsafe, "again")
    assert line.kinds == [Kind.BYE]
    with pytest.raises(PeerLost, match="its loop hangs"):
        await link.receive()


async def test_kernel_tells_of_data_on_tcp_only() -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("tcp://127.0.0.1:*")
        other.connect(one.getsockopt_string(zmq.LAST_ENDPOINT))
        other.send(b"x")
        message = await asyncio.to_thread(one.recv, copy=False)
        arrivals = Arrivals(message)
        assert arrivals.has_news(60.0)
        await asyncio.sleep(0.05)
        assert not arrivals.has_news(0.01)
        other.send(b"y")
        await asyncio.to_thread(one.recv)
        assert arrivals.has_news(60.0)
    assert not arrivals.has_news(60.0)  # closed


async def test_kernel_tells_nothing_of_a_local_socket(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind(f"ipc://{tmp_path}/s")
        other.connect(f"ipc://{tmp_path}/s")
        other.send(b"x")
        assert not Arrivals(await asyncio.to_thread(one.recv, copy=False)).has_news(60.0)
