"""Machines as Prometheus sees them, and the rules by which it tells of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from parallax_cluster.server.node_metrics import MOST_MACHINES
from parallax_core.contracts.placement import DeviceProfile, NodeProfile
from parallax_core.contracts.status import NodeStatus, PlanStatus
from tests.unit.server.letters import Site

ALERTS = Path(__file__).parents[4] / "docs/examples/alerts.yml"
FORM = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
DURATION = re.compile(r"\d+[smhd]")


def make_status(name: str, **changes: Any) -> NodeStatus:
    device = DeviceProfile(memory=5, flops=1e12, bandwidth=1e10)
    profile = NodeProfile(name=name, device=device, disk_free=7)
    return NodeStatus(name=name, host="x", pid=1, address="", backends=(), profile=profile, **changes)


def scrape(site: Site) -> dict[str, dict[str, float]]:
    """Return the value of each metric by the value of its label; empty: it has none."""
    families = text_string_to_metric_families(site.client.get("/metrics").text)
    return {
        each.name: {next(iter(sample.labels.values()), ""): sample.value for sample in each.samples}
        for each in families
        if each.name.startswith(("parallax_node", "parallax_cluster"))
    }


def test_machines_have_metrics_by_their_own_names(site: Site) -> None:
    nodes = [make_status("mini/7", unreached=("pi/1",)), make_status("mini/8"), make_status("pi/1")]
    site.models.list_nodes = lambda: nodes
    plan = PlanStatus(
        slowdowns={"mini/8": 1.5},
        drained=frozenset({"pi"}),
        waits_for="memory",
        unreachable=frozenset({("mini/7", "pi/1")}),
    )
    site.models.find_plan = lambda _: plan
    found = scrape(site)
    assert found["parallax_nodes"] == {"idle": 3, "loading": 0, "serving": 0}
    assert found["parallax_node_memory_bytes"] == {"mini": 5, "pi": 5}
    assert found["parallax_node_disk_free_bytes"] == {"mini": 7, "pi": 7}
    assert found["parallax_node_layers"] == {"mini": 0, "pi": 0}
    assert found["parallax_node_slowdown_ratio"] == {"mini": 1.5, "pi": 1}
    assert found["parallax_node_drained"] == {"mini": 0, "pi": 1}
    assert found["parallax_node_unreached"] == {"mini": 1, "pi": 0}
    assert found["parallax_node_versions_differing"] == {"mini": 0, "pi": 0}
    assert found["parallax_cluster_waiting"] == {"": 1}
    assert found["parallax_cluster_moving"] == found["parallax_cluster_standbys"] == {"": 0}


def test_many_machines_make_no_more_time_series(site: Site) -> None:
    nodes = [make_status(f"m{number}/1") for number in range(MOST_MACHINES + 5)]
    site.models.list_nodes = lambda: nodes
    found = scrape(site)
    assert found["parallax_nodes"]["idle"] == MOST_MACHINES + 5
    assert len(found["parallax_node_memory_bytes"]) == MOST_MACHINES


def list_rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert group.keys() == {"name", "rules"}
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_alert_rules_have_the_form_that_prometheus_reads() -> None:
    rules = list_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert FORM.fullmatch(rule["alert"])
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() <= {"summary", "description"}
        assert "summary" in rule["annotations"]
        assert "for" not in rule or DURATION.fullmatch(rule["for"])
        expr = rule["expr"]
        assert all(expr.count(one) == expr.count(other) for one, other in ("()", "[]", "{}"))
        assert re.search(r"[<>=]", expr), "it compares"


def test_every_metric_of_a_rule_exists(site: Site) -> None:
    families = text_string_to_metric_families(site.client.get("/metrics").text)
    known = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    used = {name for rule in list_rules() for name in re.findall(r"\bparallax_\w+", rule["expr"])}
    assert used
    assert used - known == set()


def test_labels_in_a_summary_are_those_of_its_rule(site: Site) -> None:
    for rule in list_rules():
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= ({"machine"} if "parallax_node_" in rule["expr"] else {"instance"}), rule["alert"]
