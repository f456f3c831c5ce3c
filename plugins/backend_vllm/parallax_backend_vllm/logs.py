"""Formats vLLM's log records like Parallax's, and keeps its errors for users' messages."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
"""Names the logging configuration that every process of vLLM reads."""
ERRORS = "errors"
"""The file with the tracebacks of vLLM's processes, beside the configuration."""
ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$")
"""The last line of a traceback."""


class LineFormatter(logging.Formatter):
    """Writes a record in one line; of a traceback, only the error is kept."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text, record.exc_text = super().format(record), None
        return " ".join(text.split("\n")).rstrip()

    def formatException(self, ei: object) -> str:  # noqa: N802 -- the name in logging
        """Return the type and the text of the error."""
        assert isinstance(ei, tuple), "as logging passes it"
        return f"({type(ei[1]).__name__}: {ei[1]})"


def configure_logs() -> None:
    """Make vLLM log to standard error by `LineFormatter`, and errors to a file, too; users may override it."""
    if VARIABLE in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="parallax-vllm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "logging.json"
    path.write_text(json.dumps(make_config(folder / ERRORS)), encoding="utf-8")
    os.environ[VARIABLE] = str(path)


def make_config(errors: Path) -> dict[str, object]:
    """Return a configuration for ``logging.config.dictConfig`` that writes errors to ``errors``, too.

    vLLM's information is logged only with ``--verbose``: it is forty lines for each start.
    """
    level = "INFO" if logging.getLogger().isEnabledFor(logging.DEBUG) else "WARNING"
    handlers = {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"},
        "errors": {"class": "logging.FileHandler", "filename": str(errors), "level": "ERROR", "encoding": "utf-8"},
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{__name__}.LineFormatter"}},
        "handlers": handlers,
        "loggers": {"vllm": {"handlers": [*handlers], "level": level, "propagate": False}},
    }


def find_error() -> str:
    """Return the first error that vLLM's processes have logged with a traceback, in one line; empty: none."""
    path = Path(os.environ.get(VARIABLE, "")).with_name(ERRORS)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = next((match for line in lines if (match := ERROR.match(line))), None)
    return "" if found is None else found[2]
