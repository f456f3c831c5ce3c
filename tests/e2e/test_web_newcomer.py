"""Everything that a new user wants to do, with the page alone: no documentation, no other command than those it shows.

The machines are network namespaces, one of them at the end of a slow wire. Needs root and `ip netns`; elsewhere it is
skipped.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import MODEL, PARALLAX, environment
from tests.e2e.test_run import ROOM
from tests.e2e.tiny import write_tiny
from tests.support.browser import Watch, open_browser
from tests.support.fakehub import FakeHub
from tests.support.namespaces import Machine, enter, has_namespaces, network
from tests.support.slow_wire import slow_wire

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not has_namespaces(), reason="network namespaces need root and `ip netns`"),
]

HOST = "127.0.0.1:8000"
DELAY_S = 0.1
"""What the slow wire adds to each way."""
SLOWLY_MS = 120_000
SMALL = ("--backend", "mlx", *ROOM)
"""Makes a machine one that has no room for the whole model."""


@pytest.fixture
def models(model_home: Path, model_folder: Path, tmp_path: Path) -> Path:
    """Return a folder of models that has the real model, and a small one of the hub."""
    home = tmp_path / "pulled"
    (home / "models").mkdir(parents=True)
    (home / "models" / "pypi").symlink_to(model_home / "models" / "pypi")
    tiny = write_tiny(tmp_path / "tiny", model_folder)
    with FakeHub() as hub:
        hub.add("org/tiny", {each.name: each.read_bytes() for each in tiny.iterdir()})
        settings = environment(home, HF_ENDPOINT=hub.endpoint, NO_PROXY="127.0.0.1")
        subprocess.run([PARALLAX, "models", "pull", "org/tiny"], check=True, env=settings, timeout=120)
    return home / "models"


@contextmanager
def opened(machine: Machine, command: tuple[str, ...]) -> Iterator[None]:
    """Run a server on a machine, and wait until its page can be opened."""
    with machine.running(PARALLAX, *command) as process:
        until = time.monotonic() + 120
        while not machine.fetch(f"http://{HOST}/version"):
            assert time.monotonic() < until, process.lines
            time.sleep(0.2)
        yield


def test_second_machine_a_switch_and_a_slow_hop_by_the_page_alone(models: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        here, far = stack.enter_context(network(tmp_path / "net", models, "here", "far"))
        here.ip("addr", "add", "10.79.0.1/24", "dev", "lan0")
        stack.enter_context(slow_wire(far, "10.79.0.2/24", DELAY_S))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        pool.submit(walk, here, far).result()


def walk(here: Machine, far: Machine) -> None:
    """Use the page in a browser on the first machine; this thread, and what it starts, is on that machine."""
    enter(here.namespace)
    with open_browser() as browser, ExitStack() as stack:
        page, watch = browser.new_context(locale="en").new_page(), Watch(HOST)
        watch.follow(page)
        with opened(here, ("serve", MODEL, "--backend", "mlx")):  # as `make serve` does
            page.goto(f"http://{HOST}")
            expect(page.get_by_text(f"It answers with {MODEL}.")).to_be_visible(timeout=SLOWLY_MS)
            command = read_command(page, "Add a machine")
        assert command == f"parallax run {MODEL}"
        stack.enter_context(opened(here, (*command.split()[1:], *SMALL)))
        expect(page.get_by_text("It waits for:")).to_be_visible(timeout=SLOWLY_MS)  # without a reload
        join = read_command(page, "Add a machine").split()
        assert join[:2] == ["parallax", "join"]
        expect(page.get_by_text(f"It answers with {MODEL}.")).to_have_count(0)
        stack.enter_context(far.running(PARALLAX, *join[1:], *SMALL))
        expect(page.get_by_text(f"It answers with {MODEL}.")).to_be_visible(timeout=SLOWLY_MS)
        page.get_by_role("link", name="Chat with it").click()
        page.locator(".composer textarea").fill("Name three colours.")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("tokens/s")).to_be_visible(timeout=SLOWLY_MS)
        expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=SLOWLY_MS)
        find_slow_hop(page)
        switch(page)
        watch.check()


def read_command(page: Page, heading: str) -> str:
    """Return the command that a card shows."""
    card = page.locator("section.card", has=page.get_by_role("heading", name=heading))
    return card.locator(".command code").first.inner_text()


def find_slow_hop(page: Page) -> None:
    """Look for what is slow: where the links are shown, and in the request."""
    page.get_by_role("navigation").get_by_role("link", name="Cluster").click()
    expect(page.locator(".stage:not(.head)")).to_have_count(2)
    expect(page.get_by_text("slowest hop")).to_contain_text("ms there and back")
    page.get_by_role("navigation").get_by_role("link", name="Requests").click()
    page.locator("tbody a").first.click()
    expect(page.locator(".waterfall .slowest")).to_contain_text("Hop to stage", timeout=SLOWLY_MS)


def switch(page: Page) -> None:
    """Switch to the model that is on the disk."""
    page.get_by_role("navigation").get_by_role("link", name="Models").click()
    page.get_by_role("row", name="org/tiny").get_by_role("button", name="Choose").click()
    page.get_by_label("Unload the old one first").check()  # all memory is taken, as the page says of a try without it
    page.get_by_role("button", name="Switch to it").click()
    card = page.locator("section.card", has=page.get_by_role("heading", name="org/tiny"))
    expect(card.get_by_text("ready")).to_be_visible(timeout=SLOWLY_MS)
    page.get_by_role("link", name="Home").click()
    expect(page.get_by_text("It answers with org/tiny.")).to_be_visible(timeout=SLOWLY_MS)
