"""Nothing of what models, nodes and others write runs in the page: a thousand texts of an attacker, everywhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.test_web import HOSTILE
from tests.support.browser import Watch, open_browser
from tests.support.made_cluster import MadeServer, make_cluster, make_node

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

TEXTS = 1000
GLUE = ("", " ", "\n", "\n\n", "**", "`", "$", "\\", "\x00", "\u202e", "<", "]]>", "-->", "&lt;", "](", "\t", "|")
PAGES = ("home", "chat", "cluster", "models", "requests", "logs", "settings")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def make_texts(seed: int) -> list[str]:
    """Return texts of an attacker: each a few of `HOSTILE`, cut and put together at random, with a name of its own."""
    draw = random.Random(seed)
    texts = []
    for number in range(TEXTS):
        parts = [draw.choice(HOSTILE) for _ in range(draw.randint(1, 4))]
        cut = [each[draw.randint(0, 3) :] if draw.random() < 0.2 else each for each in parts]
        texts.append(draw.choice(GLUE).join([*cut, str(number)]))
    return texts


def check(page: Page, within: str) -> None:
    """Fail if a text has run, or has made an element that could."""
    assert page.evaluate("window.hit") is None
    assert page.locator(f"{within} :is(script, style, iframe, object, embed, base, [onerror], [onload])").count() == 0
    assert page.locator(f"{within} img:not([src='./icon.svg'])").count() == 0
    links = page.locator(f"{within} a[href]").evaluate_all("links => links.map((link) => link.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:", ":"}  # the last one of what is no address


def test_answers_of_a_model_run_nothing(browser: Browser) -> None:
    messages: list[dict[str, Any]] = [{"id": "0", "parent": None, "role": "user", "text": HOSTILE[0], "created": 0}]
    for number, text in enumerate(make_texts(1), 1):
        told = {"text": text, "reasoning": text, "calls": [{"name": text, "arguments": text}], "model": text}
        made = {"id": str(number), "parent": str(number - 1), "role": "assistant", "created": 0, "state": "failed"}
        messages.append(made | told | {"error": text})
    heading = {"id": "x", "title": HOSTILE[1], "folder": HOSTILE[2], "updated": 0}
    kept = {"id": "x", "system": "", "sampling": {}, "messages": messages, "leaf": str(TEXTS), "heading": heading}
    data = json.dumps({"format": "parallax-conversations-1", "conversations": [kept]}).encode()
    with MadeServer(make_cluster([make_node(0)])) as server:
        page, watch = open_page(browser, server, "chat")
        page.get_by_label("Import").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": data})
        page.locator(".conversations li a").click()
        expect(page.locator(".answer")).to_have_count(TEXTS, timeout=60_000)
        expect(page.locator(".math:not([data-done]), code[data-lang]:not([data-done])")).to_have_count(
            0, timeout=60_000
        )
        check(page, "main")
        watch.check()


def test_answer_that_comes_runs_nothing(browser: Browser) -> None:
    text = "\n\n".join(make_texts(2)[:100])
    server = MadeServer(make_cluster([make_node(0)]), rate=1000, most_tokens=len(text) // 20)
    server.answers = lambda number: text[number * 20 : number * 20 + 20]  # cut anywhere: in tags, too
    with server:
        page, watch = open_page(browser, server, "chat")
        page.locator(".composer textarea").fill(HOSTILE[0])
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("tokens/s")).to_be_visible(timeout=60_000)
        expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=60_000)
        check(page, "main")
        watch.check()


def test_names_of_nodes_and_models_and_lines_of_logs_run_nothing(browser: Browser) -> None:
    texts = make_texts(3)
    nodes = [
        make_node(number, text, host=text, idle_reason=text, unreached=[text], model=text)
        for number, text in enumerate(texts)
    ]
    requests = [make_request(text) for text in texts[:200]]
    lines = [
        {"number": number, "time": 0.0, "level": "ERROR", "logger": text, "node": text, "text": text}
        for number, text in enumerate(texts, 1)
    ]
    server = MadeServer(make_cluster(nodes, HOSTILE[0]), HOSTILE[0], lines=lines, requests=requests, catalog=texts[:50])
    with server:
        page, watch = open_page(browser, server, "home")
        for name in PAGES:
            page.goto(f"{server.url}#/{name}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            check(page, "main")
        page.goto(f"{server.url}#/cluster")
        for text in texts[::100]:  # the table shows two hundred at a time
            page.get_by_label("Filter nodes").fill(text.replace("\n", " "))
            check(page, "main")
        page.goto(f"{server.url}#/requests")
        page.locator("tbody a").first.click()
        expect(page.locator("#waterfall")).to_be_visible()
        page.goto(f"{server.url}#/models")
        page.get_by_placeholder("A part of the model's name").fill("x")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("summary strong")).to_have_count(50)
        check(page, "main")
        watch.check()


def open_page(browser: Browser, server: MadeServer, name: str) -> tuple[Page, Watch]:
    page = browser.new_context(locale="en").new_page()
    watch = Watch(server.url.split("/")[2])
    watch.follow(page)
    page.goto(f"{server.url}#/{name}")
    return page, watch


def make_request(text: str) -> dict[str, Any]:
    part = {"name": f"stage 0 {text}", "start_seconds": 0.0, "seconds": 1.0, "is_sum": True}
    return {
        "id": text,
        "model": text,
        "state": "ended",
        "began": 0.0,
        "seconds": 1.0,
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "output_tokens": 1,
        "phase": None,
        "computed_tokens": 0,
        "first_token_seconds": None,
        "reason": text,
        "message": text,
        "parts": [part],
    }
