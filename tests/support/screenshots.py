"""Makes the pictures of the page in the documentation: ``python -m tests.support.screenshots``.

It starts a server of three stages, asks it a few questions, and writes what a browser shows into ``docs/images``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import MODEL, ROOT, environment, start_server
from tests.support.browser import open_browser

IMAGES = ROOT / "docs" / "images"
HOME = ROOT / "build" / "test-home"
SIZE = {"width": 1240, "height": 640}
QUESTIONS = ("What is the capital of France?", "Name three colours.", "Write a haiku about the sea.")


def main() -> None:
    """Write the pictures, of both themes."""
    command = [str(Path(sys.executable).with_name("parallax")), "models", "pull", MODEL]
    subprocess.run(command, check=True, env=environment(HOME), stdout=subprocess.DEVNULL)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(HOME, Path(folder) / "log", "--stages", "3")
        try:
            with open_browser() as browser:
                for theme in ("light", "dark"):
                    draw(browser, server.url.removesuffix("/v1"), theme)
        finally:
            server.end(signal.SIGTERM)


def draw(browser: Browser, url: str, theme: str) -> None:
    """Write the pictures of a theme."""
    page = browser.new_context(color_scheme=theme, viewport=SIZE, locale="en-GB").new_page()  # type: ignore[arg-type]
    page.goto(f"{url}/app/#/chat")
    for question in QUESTIONS:
        page.locator(".composer textarea").fill(question)
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("tokens/s").last).to_be_visible(timeout=60_000)
        expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=60_000)
    take(page, "chat", theme)
    page.get_by_role("navigation").get_by_role("link", name="Cluster").click()
    expect(page.get_by_text("slowest stage")).to_be_visible(timeout=10_000)
    take(page, "cluster", theme)
    page.get_by_role("navigation").get_by_role("link", name="Requests").click()
    page.locator("tbody a").first.click()
    expect(page.locator(".waterfall")).to_be_visible()
    take(page, "requests", theme)


def take(page: Page, name: str, theme: str) -> None:
    """Write what the page shows."""
    page.mouse.move(0, 0)
    page.screenshot(path=IMAGES / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
