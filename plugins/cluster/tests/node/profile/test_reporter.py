from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.node.profile import reporter as module
from parallax_cluster.node.profile.link_prober import LinkProber
from parallax_cluster.node.profile.measuring import MeasuringProcess
from parallax_cluster.node.profile.reporter import NodeReporter, is_news
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport, StoredLayers
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from tests.unit.node.cluster import soon, until

REPORT = NodeReport(
    backend="toy",
    device=DeviceReport(memory=50 * 10**6, total_memory=10**8, flops=1e12, bandwidth=1e10),
    disk_free=10**9,
)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    monkeypatch.setattr(module, "REFRESH_S", 0.02)


def change(*, memory: int = 50 * 10**6, **changes: object) -> NodeReport:
    device = msgspec.structs.replace(REPORT.device, memory=memory)
    return msgspec.structs.replace(REPORT, device=device, **changes)


class Maker:
    """Makes the reports that a test sets, and counts its calls."""

    def __init__(self, report: NodeReport | None = REPORT) -> None:
        self.report = report
        self.num_calls = 0

    def __call__(self) -> NodeReport | None:
        self.num_calls += 1
        return self.report


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield the ends of a link: the node's, and the head's."""
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    link = await InProcessTransport(TransportPlan(node="node")).connect(head.address, "head")
    try:
        far = Channel(await head.accept())
        far.learn([NodeReport])
        yield Channel(link), far
    finally:
        await head.stop()


async def test_report_is_sent_once_and_again_when_it_is_news() -> None:
    maker = Maker()
    async with connected() as (node, head), NodeReporter(maker).reporting(node, "inprocess://x"):
        assert await soon(head.receive()) == REPORT
        asked = maker.num_calls
        await until(lambda: maker.num_calls > asked + 2)
        maker.report = change(memory=40 * 10**6)
        assert await soon(head.receive()) == maker.report, "the same report was not sent again"


async def test_each_head_gets_a_report() -> None:
    reporter = NodeReporter(Maker())
    for _ in range(2):
        async with connected() as (node, head), reporter.reporting(node, "inprocess://x"):
            assert await soon(head.receive()) == REPORT


async def test_node_that_knows_nothing_reports_nothing_until_it_does() -> None:
    maker = Maker(None)
    async with connected() as (node, head), NodeReporter(maker).reporting(node, "inprocess://x"):
        await until(lambda: maker.num_calls > 2)
        maker.report = REPORT
        assert await soon(head.receive()) == REPORT


async def test_device_is_measured_first_and_not_while_there_is_a_stage(tmp_path: Path) -> None:
    made = tmp_path / "measured"
    code = f"print('imported', flush=True); open({str(made)!r}, 'w')"
    reporter = NodeReporter(lambda: REPORT if made.exists() else None, MeasuringProcess([sys.executable, "-c", code]))
    async with connected() as (node, head):
        await reporter.pause()
        async with reporter.reporting(node, "inprocess://x"):
            await asyncio.sleep(0.2)
            assert not made.exists()
            reporter.resume()
            assert await soon(head.receive()) == REPORT


async def test_fault_of_a_report_harms_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> NodeReport:
        raise ZeroDivisionError

    async with connected() as (node, head), NodeReporter(fail).reporting(node, "inprocess://x"):
        await until(lambda: "this node cannot report" in caplog.text)
        await node.close()
        with pytest.raises(PeerLost):
            await soon(head.receive())


@pytest.mark.parametrize(
    ("report", "is_new"),
    [
        (REPORT, False),
        (change(memory=49 * 10**6), False),
        (change(memory=47 * 10**6), True),
        (change(disk_free=99 * 10**7), False),
        (change(disk_free=9 * 10**8), True),
        (change(stored=(StoredLayers("hf:org/name", 0, 3),)), True),
        (change(links=(LinkReport("head", 0.01, 1e8),)), True),
        (change(unreached=("desk",)), True),
    ],
)
def test_news_is_what_matters_to_placement(report: NodeReport, *, is_new: bool) -> None:
    assert is_news(REPORT, report) is is_new


@pytest.mark.parametrize(
    ("link", "is_new"),
    [
        (LinkReport("head", 0.0015, 1.2e8), False),
        (LinkReport("head", 0.0121, 1e8), True),
        (LinkReport("head", 0.001, 0.7e8), True),
        (LinkReport("desk", 0.001, 1e8), True),
        (LinkReport("head", 0.001, 1e8, "desk"), True),
    ],
)
def test_stutter_of_a_link_is_no_news(link: LinkReport, *, is_new: bool) -> None:
    before = change(links=(LinkReport("head", 0.001, 1e8),))
    assert is_news(before, change(links=(link,))) is is_new


class Known(LinkProber):
    """Returns one measured link."""

    def __init__(self, node: str) -> None:
        super().__init__(InProcessTransport(TransportPlan(node="node")), "node")
        self.found: tuple[LinkReport, ...] = (LinkReport(node, 0.001, 1e8),)
        self.lost: tuple[str, ...] = ()

    @property
    def links(self) -> tuple[LinkReport, ...]:
        return self.found

    @property
    def unreached(self) -> tuple[str, ...]:
        return self.lost

    def note(self, node: str, *, is_reached: bool) -> None:
        assert not is_reached
        self.found, self.lost = (), (node,)
        self.news.set()

    async def run(self) -> None:
        await asyncio.sleep(60)


async def test_report_has_the_links_that_were_measured() -> None:
    async with connected() as (node, head):
        async with NodeReporter(Maker(), prober=Known("head")).reporting(node, "inprocess://x"):
            report = await soon(head.receive())
        assert isinstance(report, NodeReport)
        assert [(link.peer, link.round_trip_s) for link in report.links] == [("head", 0.001)]


async def test_node_that_is_no_longer_reached_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (node, head):
        reporter = NodeReporter(Maker(), prober=Known("far"))
        async with reporter.reporting(node, "inprocess://x"):
            first = await soon(head.receive())
            monkeypatch.setattr(module, "REFRESH_S", 60.0)
            await asyncio.sleep(0.05)
            reporter.note_link("far", is_reached=False)
            second = await soon(head.receive())
        assert isinstance(first, NodeReport)
        assert isinstance(second, NodeReport)
        assert ([each.peer for each in first.links], first.unreached) == (["far"], ())
        assert (second.links, second.unreached) == ((), ("far",))


async def test_report_has_no_more_memory_than_this_node_may_use_now() -> None:
    maker, limits = Maker(), [10**6]
    reporter = NodeReporter(maker)
    reporter.find_limit = lambda: limits[0] if limits else None
    async with connected() as (node, head), reporter.reporting(node, "inprocess://x"):
        assert await soon(head.receive()) == change(memory=10**6)
        limits.clear()
        assert await soon(head.receive()) == REPORT
        limits.append(10**9)
        asked = maker.num_calls
        await until(lambda: maker.num_calls > asked + 2)
    maker.report = None
    async with connected() as (node, head), reporter.reporting(node, "inprocess://x"):
        asked = maker.num_calls
        await until(lambda: maker.num_calls > asked + 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(head.receive(), 0.02)
