"""A browser for tests of the page: the system's Chromium, or Debian's, unpacked into ``build/``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.support.debian import unpack, write_program

FOLDER = Path(__file__).parents[2] / "build" / "chromium"


def find_chromium() -> Path:
    """Return the program; it is fetched once if the system has none.

    Raises:
        subprocess.CalledProcessError: if Debian's packages cannot be fetched.
    """
    if found := shutil.which("chromium"):
        return Path(found)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "lock"):
        if not (FOLDER / "made").exists():
            unpack(FOLDER, "chromium", "fonts-dejavu-core")
            write_program(FOLDER, "chromium", "usr/lib/chromium/chromium")
            (FOLDER / "made").touch()
    return FOLDER / "chromium"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser without a window."""
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=sandbox)
        yield browser
        browser.close()


@dataclass
class Watch:
    """What a page must not do: it is noted, and `check` says so."""

    host: str
    faults: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        """Note errors of a page, such as what its Content-Security-Policy refuses, and what it asks of other hosts."""
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._note_message)
        page.on("request", self._note_request)

    def check(self) -> None:
        """Fail if something was noted."""
        assert self.faults == []

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # an answer with an error status
            self.faults.append(message.text)

    def _note_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in {"http", "https", "ws", "wss"} and url.netloc != self.host:
            self.faults.append(f"asks {request.url}")
