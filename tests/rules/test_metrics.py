"""The page, the dashboard and the server name the same metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.server.letters import Site

DOCS = Path(__file__).parents[2] / "docs"
SUFFIX = re.compile(r"_(bucket|count|sum)$")


def list_shown() -> set[str]:
    """Return the names of a server's metrics, as used in queries."""
    with Site() as site:
        families = list(text_string_to_metric_families(site.client.get("/metrics").text))
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in families}


def test_page_names_every_metric() -> None:
    page = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == list_shown()


def test_dashboard_asks_for_every_metric_and_no_other() -> None:
    dashboard = json.loads((DOCS / "examples/grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {SUFFIX.sub("", name) for text in asked for name in re.findall(r"\bparallax_\w+", text)} == list_shown()


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((DOCS / "examples/grafana.json").read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(at["x"] + x, at["y"] + y) for at in places for x in range(at["w"]) for y in range(at["h"])]
    assert len(cells) == len(set(cells))
