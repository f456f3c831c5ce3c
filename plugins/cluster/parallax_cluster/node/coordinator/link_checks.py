"""Finds out which nodes reach each other, before a plan relies on it and for as long as they do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallax_cluster.node.membership.link_trial import try_link
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.loading import LinkFailed

logger = logging.getLogger(__name__)

FRESH_S = 30.0
"""Seconds for which a link that was tried counts, whatever its node reports of it."""
RETRY_S = 5.0
"""Seconds between two trials of links that do not exist."""
MOST_RETRIED = 8
"""The most of them that are tried at once, those first that were tried the longest ago."""
REFUSED_S, MOST_REFUSED_S = 5.0, 60.0
"""Seconds for which a link is not used that was tried with success and then failed; twice as long each time."""
MOST_TRIED_BACK = 32
"""The most links of a plan that are tried from their other ends, too."""
LOOK_S = 0.1
"""Seconds between two looks at whether nodes are lost while links are tried."""

NodePair = tuple[str, str]
"""The names of two nodes, of which the first connects to the second."""
Ends = tuple[JoinedNode, JoinedNode]


@dataclass(slots=True)
class TriedLink:
    """What came of a link when it was tried or used last."""

    at: float
    is_reached: bool
    refused_s: float = 0.0
    """Seconds from `at` for which it is not to be used in any case."""


class LinkChecks:
    """Asks nodes to try links, and keeps the results. Belongs to one event loop."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when a link has been found to work that did not."""
        self._tell = tell
        self._tried: dict[Ends, TriedLink] = {}
        self._retries: set[asyncio.Task[None]] = set()
        self._retried_at = 0.0

    def find_unreachable(
        self, nodes: Collection[JoinedNode], reported: Collection[NodePair], used: Collection[NodePair]
    ) -> frozenset[NodePair]:
        """Return the links between ``nodes`` that do not exist.

        Args:
            nodes: all that there are.
            reported: the links that do not exist as nodes report it; what was tried since counts instead.
            used: the links of pipelines that serve: these exist, whatever was reported or tried.
        """
        here, now = set(nodes), _now()
        self._tried = {ends: each for ends, each in self._tried.items() if here.issuperset(ends)}
        found = set(reported)
        for (one, other), tried in self._tried.items():
            hop = one.name, other.name
            if hop in used:
                tried.is_reached, tried.refused_s = True, 0.0
            elif not tried.is_reached:
                found.add(hop)
            elif now < tried.at + FRESH_S:
                found.discard(hop)
        return frozenset(found.difference(used))

    def note_failure(self, nodes: Mapping[str, JoinedNode], error: LinkFailed) -> None:
        """Note that a link between two of ``nodes`` has failed when it was used."""
        one, other = (nodes.get(name) for name in error.ends)
        if one is None or other is None:
            return
        before = self._tried.get((one, other))
        refused_s = 0.0
        if before is not None and before.is_reached:
            refused_s = min(max(REFUSED_S, 2 * before.refused_s), MOST_REFUSED_S)
        logger.warning("link is not used from=%s to=%s: %s", one.name, other.name, error.message)
        self._tried[one, other] = TriedLink(_now(), is_reached=False, refused_s=refused_s)
        self._tried[other, one] = TriedLink(_now(), is_reached=False)  # mostly; else that is known in a moment
        self._start_retry((other, one))

    async def check(self, links: Sequence[Ends], others: Collection[JoinedNode]) -> bool:
        """Ask nodes to try links, and return whether none of them fails.

        It is false, too, if one of ``others`` is lost meanwhile. A node that does not answer is taken to reach it. If
        links fail, it is also known whether the other end could make them: the next plan may need that.
        """
        trials = [asyncio.create_task(self._try(ends)) for ends in links]
        back = [asyncio.create_task(self._try((other, one))) for one, other in links[:MOST_TRIED_BACK]]
        try:
            if not await _wait(trials, others):
                return False
            if all(trial.result() is not False for trial in trials):
                return True
            await _wait(back, others)
            return False
        finally:
            for trial in (*trials, *back):
                trial.cancel()
            await asyncio.gather(*trials, *back, return_exceptions=True)

    def retry(self, nodes: Mapping[str, JoinedNode], unreachable: Iterable[NodePair]) -> None:
        """Ask nodes to retry some of the failed links, unless the last retry was recent."""
        now = _now()
        if now < self._retried_at + RETRY_S:
            return
        self._retried_at = now
        found = [(nodes[one], nodes[other]) for one, other in unreachable if one in nodes and other in nodes]
        due = [(self._tried.get(ends, TriedLink(0.0, is_reached=False)), ends) for ends in found]
        due = sorted((each for each in due if now >= each[0].at + each[0].refused_s), key=lambda each: each[0].at)
        for _, ends in due[:MOST_RETRIED]:
            self._start_retry(ends)

    async def close(self) -> None:
        """Try no more. Idempotent."""
        for retry in self._retries:
            retry.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)

    def _start_retry(self, ends: Ends) -> None:
        self._retries.add(retry := asyncio.create_task(self._retry(ends)))
        retry.add_done_callback(self._retries.discard)

    async def _retry(self, ends: Ends) -> None:
        if await self._try(ends):
            logger.info("link works again from=%s to=%s", ends[0].name, ends[1].name)
            self._tell()

    async def _try(self, ends: Ends) -> bool | None:
        """Return whether a link works, and keep that; None: its node does not say."""
        one, other = ends
        if (told := await try_link(one, other)) is None:
            return None
        before = self._tried.get(ends)
        if not told.is_reached and (before is None or before.is_reached):
            logger.warning("node does not reach another one node=%s other=%s: %s", one.name, other.name, told.reason)
        refused_s = before.refused_s if before is not None else 0.0
        self._tried[ends] = TriedLink(_now(), is_reached=told.is_reached, refused_s=refused_s)
        return told.is_reached


async def _wait(trials: Iterable[asyncio.Task[bool | None]], others: Collection[JoinedNode]) -> bool:
    """Wait for trials; return False at once if one of ``others`` is lost meanwhile."""
    waiting = set(trials)
    while waiting:
        _, waiting = await asyncio.wait(waiting, timeout=LOOK_S)
        if any(node.channel.ended.is_set() for node in others):
            return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
