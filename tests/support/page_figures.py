"""Measures the page in a browser: ``python -m tests.support.page_figures`` writes ``tests/page_figures.json``.

Each figure is the median of five. It exits with 1 if one is beyond its bound. The figures mean nothing while other
programs keep the processor busy: the load of the machine is written beside them.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, Page

from parallax_web.plugin import FOLDER
from tests.support.browser import open_browser
from tests.support.made_cluster import MadeServer, make_cluster, make_node

RECORD = Path(__file__).parents[1] / "page_figures.json"
TRIES = 5
NODES, EVENTS = 1000, 20
CHATS = 10_000
TOKENS_S, ANSWER_S = 100.0, 8
WARM_S = 1.5
"""Seconds in which a page settles before it is measured."""
BOUNDS = {
    "node_event_ms": 50.0,
    "conversations_s": 1.0,
    "answer_core": 0.2,
    "first_paint_s": 1.0,
    "first_scripts_bytes": 150_000.0,
    "all_scripts_bytes": 300_000.0,
}
FILL = """
async (count) => {
  const db = await new Promise((resolve, reject) => {
    const asked = indexedDB.open("parallax", 1);
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  const both = db.transaction(["headings", "conversations"], "readwrite");
  for (let number = 0; number < count; number += 1) {
    const id = `made${number}`;
    both.objectStore("headings").put({ id, title: `Conversation ${number}`, folder: "", updated: number });
    const text = `Question ${number}. `.repeat(40);
    const messages = [{ id: "1", parent: null, role: "user", text, created: number }];
    both.objectStore("conversations").put({ id, system: "", sampling: {}, messages, leaf: "1" });
  }
  await new Promise((resolve, reject) => ((both.oncomplete = resolve), (both.onerror = () => reject(both.error))));
  db.close();
}
"""
"""Writes conversations as the page keeps them."""
NOTE_LIST = """
new MutationObserver((_, watch) => {
  if (!document.querySelector(".conversations li")) return;
  requestAnimationFrame(() => requestAnimationFrame(() => (window.listed = performance.now())));
  watch.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the list of conversations is drawn, in milliseconds from the beginning of the page."""


def main() -> None:
    """Measure, write the record, and say what is beyond its bound."""
    load = os.getloadavg()[0]
    with open_browser() as browser:
        figures = measure(browser)
    made = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": find_processor(),
        "browser": f"Chromium {browser.version}",
        "load_before": round(load, 2),
        "figures": figures,
        "bounds": BOUNDS,
    }
    RECORD.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(made, indent=2))
    if beyond := [name for name, bound in BOUNDS.items() if figures[name] > bound]:
        sys.exit(f"beyond their bounds: {', '.join(beyond)}")


def measure(browser: Browser) -> dict[str, float]:
    """Return all figures."""
    with MadeServer(make_cluster([make_node(number) for number in range(3)]), rate=TOKENS_S) as server:
        server.most_tokens = int(TOKENS_S * ANSWER_S)
        figures = {
            "first_paint_s": repeat(lambda: measure_paint(browser, server)),
            "conversations_s": measure_conversations(browser, server),
            "answer_core": repeat(lambda: measure_answer(browser, server)),
        }
    with MadeServer(make_cluster([make_node(number) for number in range(NODES)])) as server:
        figures["node_event_ms"] = measure_nodes(browser, server)
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in FOLDER.glob("*.js")}
    return figures | {"first_scripts_bytes": sizes["page.js"], "all_scripts_bytes": sum(sizes.values())}


def repeat(work: Callable[[], float]) -> float:
    """Return the median of some runs."""
    return round(median(work() for _ in range(TRIES)), 4)


def measure_paint(browser: Browser, server: MadeServer) -> float:
    """Return the seconds to the first paint of content, in a browser that has nothing of the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.get_by_role("heading", level=1).wait_for()
    found: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return found / 1000


def measure_conversations(browser: Browser, server: MadeServer) -> float:
    """Return the seconds until a browser with many conversations shows the list of them."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}#/chat")
    page.locator(".composer").wait_for()
    page.evaluate(FILL, CHATS)
    page.add_init_script(NOTE_LIST)

    def look() -> float:
        page.reload()
        page.locator(".conversations li").first.wait_for()
        while (listed := page.evaluate("window.listed ?? null")) is None:  # its policy lets Playwright wait for no text
            page.wait_for_timeout(20)
        return float(listed) / 1000

    found = repeat(look)
    context.close()
    return found


def measure_answer(browser: Browser, server: MadeServer) -> float:
    """Return the share of a core that all processes of the browser take while an answer comes."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}#/chat")
    page.locator(".composer textarea").fill("Hello")
    page.get_by_role("button", name="Send").click()
    page.locator(".answer .markdown").wait_for()
    page.wait_for_timeout(WARM_S * 1000)
    began, before = time.monotonic(), count_seconds(browser)
    page.wait_for_timeout((ANSWER_S - 2 * WARM_S) * 1000)
    share = (count_seconds(browser) - before) / (time.monotonic() - began)
    assert page.get_by_role("button", name="Stop").count() == 1, "the answer has ended too early"
    context.close()
    return share


def count_seconds(browser: Browser) -> float:
    """Return the seconds of processor that the pages of a browser have taken."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(float(each["cpuTime"]) for each in found if each["type"] == "renderer")


def measure_nodes(browser: Browser, server: MadeServer) -> float:
    """Return the milliseconds that the page's thread is busy for a change of a node, the median of some runs."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}#/cluster")
    page.get_by_role("rowheader", name="machine-0/").wait_for()
    page.wait_for_timeout(WARM_S * 1000)
    tries = iter(range(TRIES))
    found = repeat(lambda: measure_events(page, server, next(tries)))
    context.close()
    return found


def measure_events(page: Page, server: MadeServer, number: int) -> float:
    """Return the milliseconds of one of some changes, which are drawn one by one."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = read_busy(session)
    for each in range(EVENTS):
        reason = f"change {number} {each}"
        server.tell("node_changed", make_node(STEADY + each, idle_reason=reason, model=None, layers=None))
        time.sleep(APART_S)  # without a question to the page, which would keep it busy
    taken = (read_busy(session) - before) / EVENTS
    page.get_by_text(f"change {number} {EVENTS - 1}", exact=True).wait_for()
    session.detach()
    return taken * 1000


APART_S = 0.15
"""Seconds between two changes."""
STEADY = 10
"""The first of the nodes that change: none with a stage."""


def read_busy(session: Any) -> float:
    """Return the seconds for which the thread of a page was busy."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def find_processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
