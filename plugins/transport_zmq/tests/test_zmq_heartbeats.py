from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from parallax_core.api import Data, Frame, PeerLost
from parallax_transport_zmq.arrivals import Arrivals
from parallax_transport_zmq.heartbeat import BEAT_S
from parallax_transport_zmq.link import Peer, ZmqLink
from parallax_transport_zmq.message import BadMessage, Kind, pack_beat, unpack_beat
from tests.support.zmq_nodes import plan_node


class RecordingLine:
    """Keeps the kinds of messages that a link posts, and the intervals that its heartbeats ask for."""

    def __init__(self) -> None:
        self.kinds: list[bytes] = []
        self.wanted: list[float | None] = []

    def post(self, message: Data) -> None:
        self.kinds.append(bytes(message)[:1])
        if self.kinds[-1] == Kind.BEAT:
            self.wanted.append(unpack_beat(bytes(message)))

    def post_threadsafe(self, message: Data) -> None:
        self.post(message)

    def hang_up(self) -> None:
        self.kinds.clear()


async def test_heartbeat_is_left_out_if_something_was_just_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    line, now = RecordingLine(), 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    link = ZmqLink(plan_node("near"), line, Peer("far", 4))
    now += BEAT_S
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT]
    now += BEAT_S
    await link.send(Frame(b"x"))
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT, Kind.FRAME]
    now += BEAT_S
    link.beat(0.1)
    assert line.kinds == [Kind.BEAT, Kind.FRAME, Kind.BEAT]


class Beating:
    """A link on a clock of its own, whose transport calls it every tenth of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 2.5) -> None:
        self.line, self.now = RecordingLine(), 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.link = ZmqLink(plan_node("near", timeout_s=timeout_s), self.line, Peer("far", 4))

    def hear(self, wanted_s: float | None) -> None:
        """Have a heartbeat come from the peer, which wants those of this end so often."""
        message = Kind.BEAT.value if wanted_s is None else pack_beat(wanted_s)
        self.link.hear(zmq.Frame(message))

    def count(self, seconds: float, wanted_s: float | None) -> int:
        """Let time pass, in which the peer sends heartbeats, and return the number of those of this end."""
        before = self.line.kinds.count(Kind.BEAT)
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            self.hear(wanted_s)
            self.link.beat(BEAT_S)
        return self.line.kinds.count(Kind.BEAT) - before


async def test_idle_link_has_five_heartbeats_within_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)
    assert beating.count(10.0, 0.5) == 20
    assert beating.line.wanted == [0.5] * 20, "and so it says to its peer"
    assert Beating(monkeypatch, timeout_s=0.5).count(10.0, 0.1) == 100


async def test_link_that_an_end_monitors_has_ten_heartbeats_a_second_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beating = Beating(monkeypatch)
    assert beating.count(2.0, BEAT_S) == 20, "the peer monitors it"
    assert beating.count(2.0, 0.5) == 4
    beating.link.monitor(lambda: None)
    assert beating.line.wanted[-1] == BEAT_S, "it says so at once"
    assert beating.count(2.0, 0.5) == 20
    for _ in range(2):
        beating.link.unmonitor()
    assert beating.line.wanted[-2:] == [BEAT_S, 0.5]
    assert beating.count(2.0, 0.5) == 4


async def test_peer_that_does_not_say_what_it_wants_gets_heartbeats_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Beating(monkeypatch).count(2.0, None) == 20


async def test_peer_cannot_have_heartbeats_come_too_rarely_or_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted_s, number in ((3600.0, 4), (0.0, 20), (0.001, 20)):
        assert Beating(monkeypatch).count(2.0, wanted_s) == number


async def test_heartbeats_of_a_busy_loop_come_as_often_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)
    beating.hear(0.5)
    for _ in range(20):
        beating.now += BEAT_S
        beating.link.beat_threadsafe()
    assert len(beating.line.wanted) == 4


async def test_silence_on_an_idle_link_is_noticed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)
    beating.count(1.0, 0.5)
    for _ in range(30):
        beating.now += BEAT_S
        beating.link.beat(BEAT_S)
    with pytest.raises(PeerLost, match=r"no sign of life for 2.5 s"):
        await beating.link.receive()


def test_malformed_heartbeat_is_told_apart() -> None:
    assert [unpack_beat(pack_beat(each)) for each in (0.1, 0.5, 10**9)] == [0.1, 0.5, (2**32 - 1) / 1000]
    with pytest.raises(BadMessage):
        unpack_beat(Kind.BEAT + b"xx")


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


BUSY = """
import sys, time
import zmq
from parallax_core.api import TransportPlan
from parallax_transport_zmq.target import open_socket

socket = open_socket(zmq.Context(), zmq.DEALER, TransportPlan(node="near", timeout_s=0.5), None)
socket.connect(sys.argv[1])
socket.send(b"hello")
print("connected", flush=True)
sys.stdin.readline()
print("alive", flush=True)
"""
"""A process that does not read what its peer sends."""


def test_process_that_is_busy_outlives_a_peer_that_sends_much_and_goes() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as peer:
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        command = [sys.executable, "-c", BUSY, f"tcp://127.0.0.1:{port}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
            name, _ = peer.recv_multipart()
            for _ in range(2000):
                peer.send_multipart([name, b"x" * 100])
            time.sleep(0.2)  # they have arrived
            peer.close(0)
            time.sleep(0.5)  # several pings
            assert process.communicate("\n", timeout=20)[0] == "alive\n"
