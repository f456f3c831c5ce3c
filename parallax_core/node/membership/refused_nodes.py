"""Warns of refused nodes, once for each reason: they try again and again."""

from __future__ import annotations

import logging
from collections import OrderedDict

logger = logging.getLogger(__name__)

MOST_REMEMBERED = 256
"""The most nodes whose latest reason is remembered."""


class RefusedNodes:
    """The nodes that were turned away lately."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def note(self, node: str, reason: str) -> None:
        """Log that a node is turned away: a warning if the reason is another than the last time."""
        is_known = self._reasons.pop(node, None) == reason
        self._reasons[node] = reason
        if len(self._reasons) > MOST_REMEMBERED:
            self._reasons.popitem(last=False)
        logger.log(logging.DEBUG if is_known else logging.WARNING, "node turned away node=%s: %s", node, reason)
