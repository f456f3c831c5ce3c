"""The page in a real browser, with a real server and the real model."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import MODEL, Server, start_server
from tests.e2e.test_answer import ANSWER
from tests.support.browser import Watch, open_browser
from tests.support.web import wait_for_link

QUESTION = "What is the capital of France?"
LONG = "Tell me a long story about a dragon and a knight."
OpenPage = Callable[..., Page]
HOSTILE = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<svg onload='window.hit = 1'><style>*{display:none}</style></svg>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "[link](javascript:window.hit=1)",
    "[link](data:text/html,<script>parent.hit=1</script>)",
    "![image](https://example.invalid/x.png)",
    "<a href='java\nscript:window.hit=1'>link</a>",
    "```html\n<script>window.hit = 1</script>\n```",
    "`<img src=x onerror=window.hit=1>`",
    "$\\href{javascript:window.hit=1}{x}$",
    "$$\\htmlStyle{background:url(https://example.invalid)}{x}$$",
    "$<img src=x onerror=window.hit=1>$",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1>",
    "<form action='https://example.invalid'><button>x</button></form>",
    "<details open ontoggle=window.hit=1>",
    "<base href='https://example.invalid/'>",
    "<style>@import 'https://example.invalid/x.css';</style>",
    "| <img src=x onerror=window.hit=1> |\n|---|\n| <script>window.hit=1</script> |",
    "[x]: javascript:window.hit=1\n\n[x]",
    '<http://example.invalid/"onmouseover=window.hit=1>',
]
"""What a model might write: nothing of it may run, be fetched, or change the page."""


FIND_WIDE = """
[...document.querySelectorAll('main *')].filter((each) => !each.parentElement.closest('.scroll'))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))
"""
"""Finds what goes beyond the right edge of the window, but in tables that scroll by themselves."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Return a function that opens an address of a server in a browser that has no data yet."""
    opened: list[tuple[Any, Watch]] = []

    def open_page(url: str, path: str = "/", **options: Any) -> Page:
        address = urlsplit(url)
        context = browser.new_context(**options)
        watch = Watch(address.netloc)
        opened.append((context, watch))
        page = context.new_page()
        watch.follow(page)
        page.goto(f"{address.scheme}://{address.netloc}{path}")
        return page

    yield open_page
    for context, watch in opened:
        context.close()
        watch.check()


def ask(page: Page, text: str) -> None:
    page.locator(".composer textarea").fill(text)
    page.get_by_role("button", name="Send").click()


def set_field(page: Page, label: str, value: str) -> None:
    page.get_by_title("Settings").click()
    page.get_by_label(label).fill(value)
    page.get_by_title("Settings").click()


def answer_of_server(page: Page, server: Server, text: str, most: int) -> str:
    body = {"model": MODEL, "input": [{"role": "user", "content": text}], "temperature": 0, "max_output_tokens": most}
    reply = page.request.post(f"{server.url}/responses", data=body).json()
    return str(reply["output"][0]["content"][0]["text"])


def test_address_of_the_server_leads_to_a_chat(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    expect(page.get_by_text(f"It answers with {MODEL}.")).to_be_visible()
    page.get_by_role("link", name="Chat with it").click()
    set_field(page, "Temperature", "0")
    ask(page, QUESTION)
    expect(page.locator(".answer")).to_have_text(ANSWER)
    expect(page.get_by_role("link", name=QUESTION)).to_be_visible()
    expect(page.get_by_text(re.compile(r"[\d.]+ tokens/s · first token after .* · 8 tokens"))).to_be_visible()
    assert page.url.startswith(server.url.removesuffix("/v1") + "/app/#/chat/")
    assert "capital" not in page.url + server.log.read_text()


def test_answer_goes_on_while_the_page_is_closed(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url, "/app/#/chat")
    set_field(page, "Temperature", "0")
    set_field(page, "Most tokens", "60")
    ask(page, LONG)
    expect(page.locator(".answer")).to_have_text(re.compile(r"\w+ \w+"))
    page.locator(".composer textarea").fill("not sent yet")
    page.reload()
    expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible(timeout=30_000)
    expect(page.locator(".composer textarea")).to_have_value("not sent yet")
    shown = page.locator(".answer .markdown").inner_text()
    assert shown.split() == answer_of_server(page, server, LONG, 60).split()
    set_field(page, "Most tokens", "20")
    page.get_by_role("button", name="Continue the answer").click()
    longer = re.compile(re.escape(" ".join(shown.split())).replace("\\ ", r"\s+") + r".*\w", re.DOTALL)
    expect(page.locator(".answer .markdown")).to_have_text(longer)
    expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible()
    assert page.locator(".answer .markdown").inner_text().split() == answer_of_server(page, server, LONG, 80).split()


def test_answer_is_stopped_and_the_question_edited(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url, "/app/#/chat")
    set_field(page, "Temperature", "0")
    ask(page, LONG)
    expect(page.locator(".answer")).to_have_text(re.compile(r"\w+ \w+"))
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    page.get_by_title("Edit").click()
    page.locator(".message textarea").fill(QUESTION)
    page.locator(".message").get_by_role("button", name="Send").click()
    expect(page.locator(".answer")).to_have_text(ANSWER)
    page.get_by_title("Earlier version").click()
    expect(page.locator(".message.user")).to_contain_text(LONG)
    expect(page.get_by_text("1 of 2")).to_be_visible()


def test_second_answer_stands_beside_the_first(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url, "/app/#/chat")
    set_field(page, "Temperature", "0")
    ask(page, QUESTION)
    expect(page.locator(".answer")).to_have_text(ANSWER)
    page.get_by_title("Generate again").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.get_by_title("Generate a second answer beside it").click()
    expect(page.locator(".answer")).to_have_text([ANSWER, ANSWER])


def test_conversations_are_exported_found_and_imported(server: Server, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(server.url, "/app/#/chat")
    set_field(page, "Most tokens", "3")
    ask(page, QUESTION)
    expect(page.get_by_text("The answer was cut at the most tokens.")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(tmp_path / "export.json")
    other = open_page(server.url, "/app/#/chat")
    other.get_by_label("Import").set_input_files(tmp_path / "export.json")
    expect(other.get_by_text("1 conversations were added.")).to_be_visible()
    other.get_by_label("Search conversations").fill("nothing like it")
    expect(other.get_by_role("link", name=QUESTION)).to_have_count(0)
    other.get_by_label("Search conversations").fill("CAPITAL")
    other.get_by_role("link", name=QUESTION).click()
    expect(other.locator(".message.user .said")).to_have_text(QUESTION)
    other.get_by_label("Import").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"{}"})
    expect(other.get_by_text("this file is no export of conversations")).to_be_visible()


def test_nothing_that_a_model_writes_is_run(server: Server, open_page: OpenPage) -> None:
    texts = [*HOSTILE, *(f"{a}\n{b}" for a in HOSTILE for b in HOSTILE)]
    messages = [{"id": "0", "parent": None, "role": "user", "text": HOSTILE[0], "created": 0}]
    for number, text in enumerate(texts, 1):
        role, parent = "assistant", str(number - 1)
        messages.append({"id": str(number), "parent": parent, "role": role, "text": text, "created": 0})
    heading = {"id": "x", "title": HOSTILE[1], "folder": HOSTILE[2], "updated": 0}
    kept = {"id": "x", "system": "", "sampling": {}, "messages": messages, "leaf": str(len(texts)), "heading": heading}
    data = json.dumps({"format": "parallax-conversations-1", "conversations": [kept]}).encode()
    page = open_page(server.url, "/app/#/chat")
    page.get_by_label("Import").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": data})
    page.locator(".conversations li a").click()
    expect(page.locator(".answer")).to_have_count(len(texts))
    expect(page.locator(".math:not([data-done]), code[data-lang]:not([data-done])")).to_have_count(0)
    assert page.evaluate("window.hit") is None
    links = page.locator(".answer a[href]").evaluate_all("links => links.map((link) => link.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
    assert page.locator(".answer :is(script, style, img, iframe, svg, form, base, input)").count() == 0


def test_request_is_shown_with_where_its_time_went_and_without_its_prompt(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url, "/app/#/requests")
    expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    body = {"model": MODEL, "prompt": "A secret prompt", "max_tokens": 5, "ignore_eos": True}
    reply = page.request.post(f"{server.url}/completions", data=body).json()
    row = page.get_by_title(reply["id"])
    expect(row).to_be_visible()
    row.click()
    waterfall = page.get_by_role("region", name=reply["id"])
    expect(waterfall.get_by_role("rowheader")).to_contain_text(
        ["Queue", "Prefill", "Decode", "Hop to stage 0", "Stage 0"]
    )
    page.get_by_role("navigation").get_by_role("link", name="Log").click()
    expect(page.get_by_text("POST /v1/completions 200").last).to_be_visible()
    for path in ("requests", "log"):
        assert "secret" not in page.request.get(f"{server.url}/{path}").text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(server: Server, open_page: OpenPage, theme: str) -> None:
    page = open_page(server.url, "/app/", color_scheme=theme, bypass_csp=True)
    set_model = page.get_by_text(f"It answers with {MODEL}.")
    expect(set_model).to_be_visible()
    for name in ("Home", "Cluster", "Models", "Requests", "Log", "Settings", "Chat"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        found = Axe().run(page).response["violations"]
        serious = [each["id"] for each in found if each["impact"] in {"serious", "critical"}]
        assert serious == [], name


def test_page_speaks_chinese_on_a_phone(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url, "/app/", locale="zh-CN", viewport={"width": 360, "height": 740})
    expect(page.get_by_text(re.compile(f"当前模型.{MODEL}"))).to_be_visible()
    for name in ("首页", "对话", "集群", "模型", "请求", "日志", "设置"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate(FIND_WIDE) == [], name
    assert page.locator("html").get_attribute("lang") == "zh"


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def make_key(page: Page, server: Server) -> str:
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("row", name="api_key_file")).to_contain_text("--api-key-file")
    page.get_by_label("Whose it is").fill("Eve")
    page.get_by_role("form", name="Make a key").get_by_label("Requests at once").fill("2")
    page.get_by_role("button", name="Make a key").click()
    key = page.locator(".command code").inner_text()
    row = page.get_by_role("row", name="Eve")
    row.get_by_role("button", name="Limit").click()
    form = page.get_by_role("form", name="Limits of Eve")
    form.get_by_label("Requests a minute").fill("600")
    form.get_by_role("button", name="Set").click()
    expect(row).to_contain_text("Requests at once: 2, Requests a minute: 600")
    wait_for_status(server, key, 200)
    return key


def connect_agent(page: Page) -> None:
    page.get_by_role("link", name="Home").click()
    page.get_by_role("button", name="Make a key").click()
    page.get_by_text("Codex").click()
    expect(page.locator(".command code", has_text="wire_api")).to_contain_text(re.compile(r"PARALLAX_KEY=\S{20}"))
    page.get_by_role("link", name="Settings").click()


def revoke_key(page: Page, server: Server, key: str) -> None:
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("row", name="Eve").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row", name="Eve")).to_have_count(0)
    wait_for_status(server, key, 401)


def wait_for_status(server: Server, key: str, status: int) -> None:
    until = time.monotonic() + 5
    while (found := httpx2.get(f"{server.url}/models", headers={"X-Api-Key": key}).status_code) != status:
        assert time.monotonic() < until, found
        time.sleep(0.1)


def test_page_needs_a_link_on_a_server_with_keys(
    model_home: Path, split: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("admin:operator:sk-" + "a" * 40 + "\n")
    keys.chmod(0o600)
    server = start_server(model_home, tmp_path / "log", "--api-key-file", str(keys), model=str(split))
    try:
        link = wait_for_link(tmp_path / "log")
        path = urlsplit(link).path + "?" + urlsplit(link).query
        stranger = open_page(server.url, "/app/")
        expect(stranger.get_by_role("heading", name="Sign in")).to_be_visible()
        page = open_page(server.url, path)
        expect(page.get_by_text("It answers with")).to_be_visible()
        expect(page.get_by_text("Signed in as admin")).to_be_visible()
        assert stranger.request.get(link).status == 403
        key = make_key(page, server)
        connect_agent(page)
        sign_in(stranger, "sk-wrong")
        expect(stranger.get_by_text("This key is not valid")).to_be_visible()
        sign_in(stranger, key)
        expect(stranger.get_by_text("Signed in as user")).to_be_visible()
        revoke_key(page, server, key)
        expect(stranger.get_by_role("heading", name="Sign in")).to_be_visible(timeout=15_000)
        page.get_by_text("Signed in as admin").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    finally:
        server.end(signal.SIGTERM)
