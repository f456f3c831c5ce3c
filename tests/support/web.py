"""The page of a running server, for tests in a browser."""

from __future__ import annotations

import re
import time
from pathlib import Path


def wait_for_link(log: Path) -> str:
    """Return the link to the page that a server with keys prints, as its log has it."""
    until = time.monotonic() + 10
    while not (found := re.findall(r"http\S+/session\?code=\S+(?=\n)", log.read_text())):
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return str(found[0])
