"""The page below a prefix, behind a real proxy."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import start_server
from tests.support.browser import Watch, open_browser
from tests.support.nginx import open_proxy
from tests.support.web import wait_for_link

KEY = "sk-" + "a" * 40


def look_at_all(page: Page) -> None:
    for name in ("Cluster", "Models", "Requests", "Log", "Settings"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.nightly
def test_page_works_below_a_prefix_of_a_proxy(model_home: Path, split: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} admin\n")
    keys.chmod(0o600)
    server = start_server(model_home, tmp_path / "log", "--api-key-file", str(keys), model=str(split))
    try:
        host = urlsplit(server.url).netloc
        with open_proxy(host, "/deep/llm", tmp_path) as url, open_browser() as browser:
            page, watch = browser.new_page(), Watch(urlsplit(url).netloc)
            watch.follow(page)
            page.goto(url + "/app")
            assert page.url == url + "/app/"
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            link = urlsplit(wait_for_link(tmp_path / "log"))
            page.goto(f"{url}{link.path}?{link.query}")
            assert page.url == url + "/app/"
            expect(page.get_by_text("It answers with")).to_be_visible()
            page.get_by_role("link", name="Chat with it").click()
            page.locator(".composer textarea").fill("Hello")
            page.get_by_role("button", name="Send").click()
            expect(page.get_by_text(re.compile(r"tokens/s"))).to_be_visible(timeout=30_000)
            page.reload()
            expect(page.locator(".message.user .said")).to_have_text("Hello")
            look_at_all(page)
            page.get_by_text("Signed in as admin").click()
            page.get_by_role("button", name="who may chat").click()
            assert page.locator(".menu .command code").inner_text().startswith(url + "/session?code=")
            watch.check()
    finally:
        server.end(signal.SIGTERM)
