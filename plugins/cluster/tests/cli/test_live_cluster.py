from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from parallax_client.client import Client
from parallax_cluster.cli.live_cluster import read_live_cluster
from parallax_cluster.cli.plan import plan
from parallax_core.base.errors import ParallaxError, UsageError

URL = "http://127.0.0.1:8000/v1"


def make_node(name: str, *links: tuple[str, float, float], **changes: object) -> dict[str, Any]:
    fields = ("peer", "round_trip_seconds", "bandwidth")
    profile = {
        "device": "M4",
        "memory": 10**10,
        "total_memory": None,
        "flops": 4e12,
        "bandwidth": 1e11,
        "flops_efficiency": 0.5,
        "bandwidth_efficiency": 0.8,
        "step_seconds": 0.001,
        "layer_seconds": 0.0001,
        "measured": True,
        "disk_free": None,
        "disk_bandwidth": 5e8,
        "links": [dict(zip(fields, link, strict=True)) for link in links],
    }
    return {"node": name, "profile": profile | changes}


def test_nodes_and_links_of_a_server_become_a_cluster() -> None:
    nodes = [
        make_node("mini", ("desk", 0.002, 1e8), ("head", 0.001, 1e9), ("gone", 0.1, 1e6)),
        make_node("desk", ("mini", 0.004, 2e8)),
        {"node": "new", "profile": None},
    ]
    cluster = read_live_cluster({"object": "cluster", "nodes": nodes}, URL)
    assert [node.name for node in cluster.nodes] == ["mini", "desk"]
    device = cluster.nodes[0].device
    assert (device.memory, device.flops_efficiency, device.step_s, device.layer_s) == (10**10, 0.5, 0.001, 0.0001)
    assert cluster.nodes[0].disk_bandwidth == 5e8
    links = {frozenset(link.ends): (link.round_trip_s, link.bandwidth) for link in cluster.links}
    assert links == {frozenset(("mini", "desk")): (0.004, 1e8), frozenset(("mini", "head")): (0.001, 1e9)}
    assert cluster.head == "head"


def test_older_server_is_read_without_efficiencies_and_fixed_times() -> None:
    node = make_node("mini")
    for name in ("flops_efficiency", "bandwidth_efficiency", "step_seconds", "layer_seconds"):
        del node["profile"][name]
    [found] = read_live_cluster({"nodes": [node]}, URL).nodes
    assert (found.device.flops_efficiency, found.device.step_s) == (1.0, 0.0)


def test_server_whose_nodes_have_said_nothing_is_an_error_with_the_next_step() -> None:
    with pytest.raises(ParallaxError, match="no node of the server") as found:
        read_live_cluster({"nodes": [{"node": "new", "profile": None}]}, URL)
    assert "parallax nodes" in found.value.hint


@pytest.mark.parametrize("changes", [{"memory": 0}, {"flops": "fast"}, {"bandwidth": -1.0}, {"links": None}])
def test_wrong_figure_is_an_error_that_names_it(changes: dict[str, object]) -> None:
    with pytest.raises(ParallaxError, match=next(iter(changes))):
        read_live_cluster({"nodes": [make_node("mini", **changes)]}, URL)


class ClusterHandler(BaseHTTPRequestHandler):
    """Answers as a server with one node."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "cluster", "nodes": [make_node("mini")]}).encode()
        self.send_response(200 if self.path == "/v1/cluster" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def live() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), ClusterHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_plan_is_made_for_the_nodes_of_a_running_server(live: str) -> None:
    assert [node.name for node in read_live_cluster(Client(live, 5.0).cluster(), live).nodes] == ["mini"]


def test_file_and_url_together_are_refused(live: str) -> None:
    with pytest.raises(UsageError, match="both"):
        plan("model", nodes=Path("nodes.toml"), url=live)


def test_no_file_and_no_server_is_an_error_that_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_cluster.cli.plan.find_url", lambda url: "http://127.0.0.1:9/v1")
    with pytest.raises(UsageError, match="--nodes is not given") as found:
        plan("model")
    assert "--nodes FILE" in found.value.hint


def test_links_that_do_not_exist_are_taken_over() -> None:
    nodes = [make_node("mini"), {**make_node("desk"), "unreached": ["mini"]}]
    assert read_live_cluster({"nodes": nodes}, URL).unreachable == {("desk", "mini")}
