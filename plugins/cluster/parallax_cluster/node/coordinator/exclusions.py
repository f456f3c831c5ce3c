"""Keeps which nodes get no layers for a while, since they could not load theirs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

EXCLUDED_S, MOST_EXCLUDED_S = 60.0, 3600.0
"""Seconds for which a node is excluded: twice as long each time that follows soon, since each attempt costs a pause."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Until when a node gets no layers, and why."""

    reason: str
    until: float
    seconds: float


class Exclusions:
    """The nodes that get no layers, by name; times are given, not read."""

    def __init__(self) -> None:
        self._found: dict[str, Exclusion] = {}

    def add(self, node: str, reason: str, now: float) -> None:
        """Exclude a node for a while, from now on."""
        before = self._found.get(node)
        seconds = EXCLUDED_S if before is None else min(2 * before.seconds, MOST_EXCLUDED_S)
        logger.warning("node gets no layers for %g s node=%s: %s", seconds, node, reason)
        self._found[node] = Exclusion(reason, now + seconds, seconds)

    def find(self, now: float) -> dict[str, str]:
        """Return why nodes are excluded now, by name; one is forgotten once it has behaved for as long."""
        self._found = {node: each for node, each in self._found.items() if now < each.until + each.seconds}
        return {node: each.reason for node, each in self._found.items() if now < each.until}
