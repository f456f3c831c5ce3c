"""The page while its cluster lives: machines join and die, models change, the server is started again, sessions end."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import Server, make_home, start_server
from tests.e2e.test_models import serving
from tests.e2e.test_run import coordinating, join_with, read_ready, started
from tests.e2e.test_web import LONG, ask, set_field
from tests.e2e.tiny import write_tiny
from tests.support.browser import Watch, open_browser
from tests.support.fakehub import FakeHub, Fault
from tests.support.ports import find_ports
from tests.support.web import wait_for_link

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

MOST = 150
"""The tokens of an answer: enough to end the server in the middle."""
KEY, OTHER = "sk-" + "a" * 40, "sk-" + "b" * 40
SLOWLY_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def home(model_home: Path, tmp_path: Path) -> Path:
    """Return the home of a machine that has the real model, and keeps to itself what it fetches from the hub."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "pypi").symlink_to(model_home / "models" / "pypi")
    return home


def open_page(browser: Browser, server: Server, path: str) -> tuple[Page, Watch]:
    address = urlsplit(server.url)
    page, watch = browser.new_context().new_page(), Watch(address.netloc)
    watch.follow(page)
    page.goto(f"{address.scheme}://{address.netloc}{path}")
    return page, watch


def export_answer(page: Page, path: Path) -> str:
    """Return the last answer of the only conversation, as the browser keeps it."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(path)
    return str(json.loads(path.read_text())["conversations"][0]["messages"][-1]["text"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_answer_goes_on_when_the_server_is_started_again(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path, number: int
) -> None:
    options = ("--port", str(find_ports()), "--set", f"response_store={tmp_path / 'responses'}")
    server = start_server(model_home, tmp_path / "first", *options, model=str(split))
    page, watch = open_page(browser, server, "/app/#/chat")
    set_field(page, "Temperature", "0")
    set_field(page, "Most tokens", str(MOST))
    ask(page, LONG)
    expect(page.locator(".answer .markdown")).to_have_text(re.compile(r"\S{3}"))
    server.end(number)
    expect(page.get_by_text("Disconnected")).to_be_visible()
    server = start_server(model_home, tmp_path / "second", *options, model=str(split))
    try:
        expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible(timeout=SLOWLY_MS)
        expect(page.get_by_text("Disconnected")).to_have_count(0)
        body = {"input": [{"role": "user", "content": LONG}], "temperature": 0, "max_output_tokens": MOST}
        reply = page.request.post(f"{server.url}/responses", data=body).json()
        whole = reply["output"][0]["content"][0]["text"]
        assert export_answer(page, tmp_path / "export.json") == whole
        watch.check()
    finally:
        server.end(signal.SIGTERM)


def test_machine_that_joins_appears_and_one_that_dies_goes(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path
) -> None:
    homes = {name: make_home(tmp_path / name, model_home) for name in ("first", "one", "two", "three")}
    log = tmp_path / "log"
    with ExitStack() as stack:
        process, code = stack.enter_context(coordinating(homes["first"], log, "--nodes", "2", model=split))

        def join(name: str) -> int:
            arguments = join_with(split, code)
            return stack.enter_context(started(homes[name], tmp_path / f"{name}.log", *arguments)).pid

        join("one")
        server = read_ready(process, log)
        page, watch = open_page(browser, server, "/app/#/cluster")
        expect(page.locator(".stage:not(.head)")).to_have_count(2)
        pid = join("two")
        row = page.get_by_role("rowheader", name=f"/{pid}")
        expect(row).to_be_visible(timeout=SLOWLY_MS)
        os.kill(pid, signal.SIGKILL)
        expect(row).to_have_count(0, timeout=SLOWLY_MS)
        row = page.get_by_role("row", name=f"/{join('three')}")
        row.get_by_role("button", name="Drain").click(timeout=SLOWLY_MS)
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Remove").click(timeout=SLOWLY_MS)
        expect(row).to_have_count(0, timeout=SLOWLY_MS)
        expect(page.get_by_text("Ready").first).to_be_visible()
        watch.check()
        server.end(signal.SIGTERM)


def download_and_stop(page: Page) -> None:
    page.get_by_label("Model: a folder").fill("org/tiny")
    page.get_by_role("button", name="Download").click()
    fetched = page.get_by_role("listitem").filter(has_text="org/tiny")
    expect(fetched).to_contain_text("is being fetched")
    expect(fetched.get_by_role("progressbar")).to_be_visible(timeout=SLOWLY_MS)
    fetched.get_by_role("button", name="Stop").click()
    expect(fetched).to_contain_text("was stopped")


def choose_on_hub(page: Page) -> None:
    page.get_by_placeholder("A part of the model's name").fill("TINY")
    page.get_by_role("button", name="Search").click()
    page.locator("summary", has_text="org/tiny").click()
    formats = page.locator("details .formats")
    expect(formats).to_contain_text("fits")
    formats.get_by_role("button", name="Choose").click()
    expect(page.get_by_label("Model: a folder")).to_have_value("org/tiny")


def test_model_is_fetched_with_its_progress_and_switched_to(
    browser: Browser, home: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = write_tiny(tmp_path / "tiny", model_folder)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add("org/tiny", {each.name: each.read_bytes() for each in tiny.iterdir()})
        hub.faults.append(Fault("", pause_s=0.02, times=1000))
        with serving(home, tmp_path / "log", "--memory", "2") as (server, _):
            page, watch = open_page(browser, server, "/app/#/models")
            download_and_stop(page)
            choose_on_hub(page)
            page.get_by_role("button", name="Switch to it").click()
            card = page.locator("section.card", has=page.get_by_role("heading", name="org/tiny"))
            expect(card.get_by_role("progressbar")).to_be_visible(timeout=SLOWLY_MS)
            expect(card.get_by_text("ready")).to_be_visible(timeout=SLOWLY_MS)
            page.get_by_role("link", name="Home").click()
            expect(page.get_by_text("It answers with org/tiny.")).to_be_visible(timeout=SLOWLY_MS)
            page.get_by_role("link", name="Models").click()
            page.on("dialog", lambda dialog: dialog.accept())
            row = page.get_by_role("row", name="org/tiny")
            row.get_by_role("button", name="Delete").click()
            expect(page.get_by_role("alert")).to_contain_text("is loaded as 'org/tiny'")
            card.get_by_role("button", name="Unload").click()
            expect(card.get_by_text("not loaded")).to_be_visible(timeout=SLOWLY_MS)
            row.get_by_role("button", name="Delete").click()
            expect(row).to_have_count(0)
            watch.check()


def test_session_that_ends_asks_to_sign_in_and_a_wrong_link_opens_none(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} admin\n")
    keys.chmod(0o600)
    server = start_server(model_home, tmp_path / "log", "--api-key-file", str(keys), model=str(split))
    try:
        wrong, _ = open_page(browser, server, "/app/")
        expect(wrong.get_by_role("heading", name="Sign in")).to_be_visible()
        answer = wrong.goto(server.url.replace("/v1", "/session?code=wrong"))
        assert answer is not None
        assert answer.status == 403
        link = urlsplit(wait_for_link(tmp_path / "log"))
        page, watch = open_page(browser, server, f"{link.path}?{link.query}")
        expect(page.get_by_text("It answers with")).to_be_visible()
        other = page.context.new_page()
        other.goto(page.url)
        other.get_by_text("Signed in as admin").click()
        other.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=SLOWLY_MS)
        watch.check()
    finally:
        server.end(signal.SIGTERM)


def test_answer_goes_on_when_the_network_was_away(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path
) -> None:
    server = start_server(model_home, tmp_path / "log", model=str(split))
    try:
        page, _ = open_page(browser, server, "/app/#/chat")  # whose requests fail meanwhile, which it reports
        set_field(page, "Temperature", "0")
        set_field(page, "Most tokens", str(MOST))
        ask(page, LONG)
        expect(page.locator(".answer .markdown")).to_have_text(re.compile(r"\S{3}"))
        page.context.set_offline(True)
        expect(page.get_by_text("Disconnected")).to_be_visible(timeout=SLOWLY_MS)
        page.context.set_offline(False)
        expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible(timeout=SLOWLY_MS)
        expect(page.get_by_text("Disconnected")).to_have_count(0)
        body = {"input": [{"role": "user", "content": LONG}], "temperature": 0, "max_output_tokens": MOST}
        reply = page.request.post(f"{server.url}/responses", data=body).json()
        assert export_answer(page, tmp_path / "export.json") == reply["output"][0]["content"][0]["text"]
    finally:
        server.end(signal.SIGTERM)


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Signed in as")).to_be_visible()
    page.get_by_role("link", name="Chat").first.click()


@pytest.fixture
def keeping(split: Path, model_home: Path, tmp_path: Path) -> Iterator[Server]:
    """Return a server with two keys that keeps conversations."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} admin\n{OTHER} user\n")
    keys.chmod(0o600)
    options = ("--api-key-file", str(keys), "--set", f"web.chats={tmp_path / 'chats'}")
    server = start_server(model_home, tmp_path / "log", *options, model=str(split))
    yield server
    server.end(signal.SIGTERM)


def test_answer_goes_on_after_one_has_signed_in_again(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} admin\n")
    keys.chmod(0o600)
    kept = f"response_store={tmp_path / 'responses'}"
    options = ("--port", str(find_ports()), "--set", kept, "--api-key-file", str(keys))
    server = start_server(model_home, tmp_path / "first", *options, model=str(split))
    page, watch = open_page(browser, server, "/app/#/chat")
    sign_in(page, KEY)
    set_field(page, "Temperature", "0")
    set_field(page, "Most tokens", str(MOST))
    ask(page, LONG)
    expect(page.locator(".answer .markdown")).to_have_text(re.compile(r"\S{3}"))
    server.end(signal.SIGKILL)
    server = start_server(model_home, tmp_path / "second", *options, model=str(split))
    try:
        page.get_by_label("API key").fill(KEY, timeout=SLOWLY_MS)  # the server has forgotten its sessions
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible(timeout=SLOWLY_MS)
        body = {"input": [{"role": "user", "content": LONG}], "temperature": 0, "max_output_tokens": MOST}
        reply = page.request.post(f"{server.url}/responses", data=body, headers={"X-Api-Key": KEY}).json()
        assert export_answer(page, tmp_path / "export.json") == reply["output"][0]["content"][0]["text"]
        watch.check()
    finally:
        server.end(signal.SIGTERM)


def open_kept(browser: Browser, server: Server, key: str) -> Page:
    """Return a page of a browser of its own, which has its conversations kept."""
    page, _ = open_page(browser, server, "/app/#/chat")
    sign_in(page, key)
    page.get_by_label("Keep conversations on the server").check()
    return page


def ask_kept(page: Page, text: str, answers: int) -> None:
    """Ask, and wait for the answer of five tokens."""
    set_field(page, "Most tokens", "5")
    ask(page, text)
    expect(page.get_by_text("The answer was cut")).to_have_count(answers, timeout=SLOWLY_MS)


def test_conversation_goes_on_in_another_browser_of_its_key(browser: Browser, keeping: Server) -> None:
    first, second = (open_kept(browser, keeping, KEY) for _ in range(2))
    ask_kept(first, "Which river is blue?", 1)
    second.reload()
    second.get_by_role("link", name="Which river is blue?").click()
    expect(second.locator(".answer .markdown")).to_have_text(first.locator(".answer .markdown").inner_text())
    ask_kept(second, "And which one is red?", 2)
    ask_kept(first, "And which one is green?", 2)  # of the version that the other browser has changed meanwhile
    first.reload()
    expect(first.get_by_text("2 of 2")).to_be_visible()
    first.on("dialog", lambda dialog: dialog.accept())
    first.get_by_label("Keep conversations on the server").uncheck()
    expect(first.locator(".conversations li")).to_have_count(1)
    expect(open_kept(browser, keeping, KEY).locator(".conversations li")).to_have_count(0)


def test_conversations_of_a_key_are_there_for_no_other(browser: Browser, keeping: Server) -> None:
    first, stranger = (open_kept(browser, keeping, key) for key in (KEY, OTHER))
    ask_kept(first, "Which river is blue?", 1)
    stranger.reload()
    expect(stranger.get_by_label("Keep conversations on the server")).to_be_checked()
    expect(stranger.locator(".conversations li")).to_have_count(0)


class OtherOrigin(BaseHTTPRequestHandler):
    """A page of somebody else on this host: browsers send it the cookies of all ports."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


TRY = """
async ([url, method]) => {
  try {
    const answer = await fetch(url, { method, credentials: "include", mode: method === "GET" ? "cors" : "no-cors" });
    return answer.type === "opaque" ? "opaque" : await answer.text();
  } catch (error) {
    return "refused";
  }
}
"""
FRAME = """
(url) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { resolve(frame.contentDocument?.body?.innerText ?? "closed"); } catch { resolve("closed"); }
  };
  frame.src = url;
  document.body.append(frame);
})
"""


def test_page_of_another_origin_reads_and_changes_nothing(
    browser: Browser, split: Path, model_home: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} admin\n")
    keys.chmod(0o600)
    server = start_server(model_home, tmp_path / "log", "--api-key-file", str(keys), model=str(split))
    other = ThreadingHTTPServer(("127.0.0.1", 0), OtherOrigin)
    threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        page, watch = open_page(browser, server, "/app/")
        sign_in(page, KEY)
        foreign = page.context.new_page()
        foreign.goto(f"http://127.0.0.1:{other.server_port}/")
        for path in ("cluster", "requests", "log", "keys", "settings", "catalog"):
            assert foreign.evaluate(TRY, [f"{server.url}/{path}", "GET"]) == "refused"
        assert foreign.evaluate(TRY, [f"{server.url}/keys?name=eve&role=admin", "POST"]) == "opaque"
        assert len(keys.read_text().splitlines()) == 1
        foreign.goto(f"http://127.0.0.1:{other.server_port}/")
        assert foreign.evaluate(FRAME, server.url.replace("/v1", "/app/")) == "closed"
        page.reload()
        expect(page.get_by_text("Signed in as admin")).to_be_visible()
        watch.check()
    finally:
        other.shutdown()
        other.server_close()
        server.end(signal.SIGTERM)
