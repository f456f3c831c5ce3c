"""Keeps the latest lines of the log of a server, and of the nodes that have joined it, in memory."""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

MOST_OWN, MOST_OF_NODE, MOST_NODES = 2000, 100, 1024
"""The most lines of this process and of a node, and the most nodes; the oldest goes first."""
MOST_TEXT = 2000
"""The most characters of a line, with its traceback."""
ACCESS = "parallax_core.server.access_log"
"""The logger whose lines may have bodies of requests, if the operator wants that."""
LOOKS = re.compile(r"GET /v1/(cluster|log|requests)(\?\S*)? 200 ")
"""Its lines of those who only look, again and again: they would push out all others."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log."""

    time: float
    """In seconds since 1970."""
    level: str
    logger: str
    text: str
    number: int = 0
    """Counts the lines that a store was given, from 1."""
    node: str = ""
    """The node that wrote it; empty: this process."""


@dataclass(slots=True)
class LogStore:
    """The latest lines of this process and of nodes, for each apart, so that none pushes out those of another."""

    own: deque[LogLine] = field(default_factory=lambda: deque(maxlen=MOST_OWN))
    nodes: OrderedDict[str, deque[LogLine]] = field(default_factory=OrderedDict)
    last: int = 0
    """The number of the last line."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, lines: Iterable[LogLine], node: str = "") -> None:
        """Keep lines of this process, or of a node."""
        with self._lock:
            kept = self._find(node) if node else self.own
            for line in lines:
                self.last += 1
                kept.append(LogLine(line.time, line.level, line.logger, line.text, self.last, node))

    def list(self, limit: int, after: int = 0, node: str | None = None) -> list[LogLine]:
        """Return the latest lines in the order in which they came.

        Args:
            limit: the most lines.
            after: only lines whose number is greater.
            node: only lines of this node; empty: of this process; None: of all.
        """
        with self._lock:
            if node is not None:
                kept = list(self.nodes.get(node, ()) if node else self.own)
            else:
                kept = [line for lines in (self.own, *self.nodes.values()) for line in lines]
        new = (line for line in kept if line.number > after)
        return nlargest(limit, new, key=lambda line: line.number)[::-1]

    def _find(self, node: str) -> deque[LogLine]:
        found = self.nodes.setdefault(node, deque(maxlen=MOST_OF_NODE))
        self.nodes.move_to_end(node)
        if len(self.nodes) > MOST_NODES:
            self.nodes.popitem(last=False)
        return found


class LogHandler(logging.Handler):
    """Puts records from INFO on into a store, without bodies of requests, which the log has if `log_prompts` is set."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(logging.INFO)
        self._store = store
        self._format = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            text = self._format.format(record)
        except Exception:  # noqa: BLE001 -- a caller's arguments may raise anything, as in every handler of `logging`
            self.handleError(record)
            return
        if record.name == ACCESS:
            text = text.partition(" body=")[0]
            if LOOKS.match(text):
                return
        self._store.add([LogLine(record.created, record.levelname, record.name, text[:MOST_TEXT])])


STORE = LogStore()
"""The store of this process: hooks are functions of a module."""
