"""Names the command that a user types next, as it works in another terminal on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8000/v1"
"""Where a server is by default."""
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- looked up, not bound
"""Where a server is reached from its own machine that listens at each of its addresses."""


def name_chat(url: str) -> str:
    """Return the command that talks to the server at ``url``, such as ``http://127.0.0.1:8000/v1``."""
    parts = urlsplit(url)
    host = ANY_ADDRESS.get(parts.hostname or "", parts.hostname or "")
    place = f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"
    reached = parts._replace(netloc=place).geturl()
    return f"{name_program()} chat" + ("" if reached == DEFAULT_URL else f" --url {reached}")


def name_program() -> str:
    """Return how this program was started, or its bare name where a shell finds the same program by it."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{sys.executable} -m parallax_core"
    found = shutil.which("parallax")
    is_found = found is not None and started.exists() and started.samefile(found)
    return "parallax" if is_found else sys.argv[0]
