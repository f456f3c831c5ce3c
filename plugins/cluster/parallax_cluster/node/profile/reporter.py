"""Sends the reports of a node to its head."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from parallax_cluster.node.profile.link_prober import LinkProber
from parallax_cluster.node.profile.measuring import MeasuringProcess
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport, Peer, Peers
from parallax_core.api import PeerLost
from parallax_core.api.node import Channel
from parallax_core.node.worker.thread import StageThread

logger = logging.getLogger(__name__)

IDLE_S = 0.5
"""Seconds without a stage before a node is measured: a head that waits for a node gives it one at once."""
REFRESH_S = 10.0
"""Seconds between two looks at what may change, such as the free memory."""
SETTLE_S = 0.5
"""Seconds between a change of who is reached and the report of it."""
MEMORY_STEP, DISK_STEP = 0.02, 0.05
"""The change of the free memory, as a share of all memory, and that of the free disk that is worth a report."""
LINK_STEP, LEAST_STEP_S = 0.25, 0.001
"""The change of a round trip or a bandwidth, as a share of itself, that is worth a report; and of a round trip, in
seconds, that is worth one at all."""

MakeReport = Callable[[], NodeReport | None]
FindLimit = Callable[[], int | None]


class NodeReporter:
    """Reports what this node has to offer to each head that it joins, and again when that has changed.

    The device is measured while the node has no stage. Belongs to one event loop.
    """

    def __init__(
        self, make: MakeReport, measuring: MeasuringProcess | None = None, prober: LinkProber | None = None
    ) -> None:
        """Report what ``make`` returns on its own thread, where it may block; None: nothing is known.

        ``measuring`` has run before, if there is one; ``prober`` measures the links.
        """
        self._make = make
        self._measuring = measuring
        self._prober = prober
        self._thread: StageThread | None = None
        self._is_idle = True
        self.find_limit: FindLimit | None = None
        """Returns the bytes of memory to report at most; None: all that is free."""

    async def pause(self) -> None:
        """Measure no more until `resume`: a stage is about to be loaded."""
        self._is_idle = False
        if self._measuring is not None:
            await self._measuring.interrupt()

    def resume(self) -> None:
        """Measure if that is still to be done: there is no stage any more."""
        self._is_idle = True

    def meet(self, peers: Peers) -> None:
        """Measure the links to the nodes to which the head introduces this one."""
        if self._prober is not None:
            self._prober.meet(peers)

    def note_link(self, node: str, *, is_reached: bool) -> None:
        """Note whether another node was reached just now."""
        if self._prober is not None:
            self._prober.note(node, is_reached=is_reached)

    @asynccontextmanager
    async def reporting(self, channel: Channel, address: str) -> AsyncIterator[None]:
        """Report to the head at ``address``, which this node has joined over ``channel``."""
        tasks = [asyncio.create_task(_log_failure(self._report(channel)))]
        if self._prober is not None:
            self._prober.begin(Peer(channel.peer, address))
            tasks.append(asyncio.create_task(_log_failure(self._prober.run())))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self, channel: Channel) -> None:
        sent: NodeReport | None = None
        wait_s = IDLE_S
        while True:
            await self._wait(wait_s)
            if self._is_idle and self._measuring is not None and not self._measuring.is_done:
                await self._measuring.run()
            report = await self._call()
            if report is not None and self._prober is not None:
                report = msgspec.structs.replace(report, links=self._prober.links, unreached=self._prober.unreached)
            if report is not None and (sent is None or is_news(sent, report)):
                await channel.send(report)
                sent = report
            wait_s = REFRESH_S

    async def _wait(self, seconds: float) -> None:
        """Wait, for less if another node is no longer reached, or is again."""
        if self._prober is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._prober.news.wait()
        await asyncio.sleep(min(SETTLE_S, seconds))  # other links may change with it
        self._prober.news.clear()

    async def _call(self) -> NodeReport | None:
        self._thread = self._thread or StageThread("parallax-report")
        report = await self._thread.call(self._make)
        limit = self.find_limit() if self.find_limit is not None else None
        if report is None or limit is None or report.device.memory <= limit:
            return report
        return msgspec.structs.replace(report, device=msgspec.structs.replace(report.device, memory=limit))


async def _log_failure(reporting: Coroutine[Any, Any, None]) -> None:
    try:
        with suppress(PeerLost):  # the session notices, too
            await reporting
    except Exception:  # a node that cannot report serves all the same
        logger.exception("this node cannot report its device")


def is_news(old: NodeReport, new: NodeReport) -> bool:
    """Return whether a report differs from an earlier one by more than the usual ups and downs of free memory."""
    moved = abs(new.device.memory - old.device.memory) > MEMORY_STEP * max(new.device.total_memory, old.device.memory)
    filled = abs(new.disk_free - old.disk_free) > DISK_STEP * old.disk_free
    return moved or filled or _have_links_changed(old.links, new.links) or _strip(old) != _strip(new)


def _have_links_changed(old: Sequence[LinkReport], new: Sequence[LinkReport]) -> bool:
    if [(each.peer, each.relay) for each in old] != [(each.peer, each.relay) for each in new]:
        return True
    return any(
        abs(a.round_trip_s - b.round_trip_s) > max(LINK_STEP * a.round_trip_s, LEAST_STEP_S)
        or abs(a.bandwidth - b.bandwidth) > LINK_STEP * a.bandwidth
        for a, b in zip(old, new, strict=True)
    )


def _strip(report: NodeReport) -> NodeReport:
    """Return a report without what `is_news` compares by its own rules."""
    device: DeviceReport = msgspec.structs.replace(report.device, memory=0)
    return msgspec.structs.replace(report, device=device, disk_free=0, links=())
