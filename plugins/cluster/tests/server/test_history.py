"""What has happened to a cluster, over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from parallax_cluster.config.home import event_file
from parallax_cluster.node.membership.event_store import Event, EventStore
from tests.unit.server.letters import Site, error_of


def test_what_has_happened_is_listed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    now = time.time()
    events = [Event(time=now - age, kind="node_left", subject=f"mini/{age}") for age in (500, 50, 5)]
    EventStore(event_file()).add(events)
    found = site.client.get("/v1/cluster/history?since=100").json()
    assert (found["object"], [each["subject"] for each in found["data"]]) == ("list", ["mini/50", "mini/5"])
    assert [each["subject"] for each in site.client.get("/v1/cluster/history?limit=1").json()["data"]] == ["mini/5"]
    assert error_of(site.client.get("/v1/cluster/history?since=-1"))["param"] == "since"
