"""Configures logging; only the command line does so, once."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
QUIET = ("uvicorn", "asyncio", "httpx", "httpx2", "huggingface_hub", "filelock")
VARIABLE = "PARALLAX_LOG_FORMAT"
"""The environment variable of the format, ``text`` or ``json``; processes that are started inherit it."""
PLACE = re.compile(r"(?:(\w+)=)?%(?:%|[-+ 0#]*\d*(?:\.\d+)?([a-zA-Z]))")
"""A place of a value in a message, with the name before it, as in ``node=%s``."""
SCALARS = (bool, int, str, type(None))


def choose_format(given: str | None) -> None:
    """Set the format of log lines, for processes started from now on, too; None: leave it."""
    if given is not None:
        os.environ[VARIABLE] = given


def writes_json() -> bool:
    """Return whether log lines are JSON."""
    return os.environ.get(VARIABLE) == "json"


def configure(*, verbose: bool, node: str = "") -> None:
    """Send log records to standard error: Parallax's from INFO (or DEBUG) on, noisy libraries' from WARNING on.

    Each line begins with the name of the ``node``, if it has one, or is a JSON object: see `JsonFormatter`.
    """
    prefix = f"[{node}] ".replace("%", "%%") if node else ""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(node) if writes_json() else logging.Formatter(prefix + FORMAT, "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(writes_json())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def write_line(message: str, level: str = "INFO") -> str:
    """Return the line of a message that a command prints to standard error beside the log: JSON if the log is."""
    if not writes_json():
        return message
    record = logging.makeLogRecord({"msg": message, "name": "parallax_core.cli", "levelname": level})
    return JsonFormatter().format(record)


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object with ``time``, ``level``, ``logger``, ``message``, ``fields``, and more.

    ``node`` is the name of this node, and ``traceback`` that of an error; each is left out without one. ``fields``
    holds the values that the message names, as ``node=mini/1``.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, on one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "fields": dict(find_fields(record)),
        }
        if self._node:
            line["node"] = self._node
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False, default=str)


def find_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the values that a record's message names."""
    args = record.args if isinstance(record.args, tuple) else ()
    places = (match for match in PLACE.finditer(str(record.msg)) if match[2])
    for match, value in zip(places, args, strict=False):
        if match[1]:
            is_number = isinstance(value, float) and isfinite(value)
            yield match[1], value if is_number or isinstance(value, SCALARS) else str(value)
