from __future__ import annotations

from typing import Any

from parallax_cluster.cli.run_view import RunView, render_state
from plugins.cluster.tests.cli.test_nodes import IDLE, NODE, PLAN
from plugins.cluster.tests.cli.test_served_models import Server

STATE: dict[str, Any] = {"models": [{"id": "toy", "state": "loading"}], "nodes": [NODE, IDLE], "replicas": []}
KNOWN: list[dict[str, Any]] = [{"id": "toy", "nodes": []}]


def test_state_shows_nodes_and_what_they_load() -> None:
    loading = {"node": "studio/1", "task": "load toy", "done": 42, "total": 100}
    known = [{"id": "toy", "nodes": [loading, {**loading, "node": "mini/2", "task": None}]}]
    plan = {**PLAN, "predicted": None, "replicas": []}
    lines = list(render_state({**STATE, "plan": plan}, known))
    assert lines[0] == "toy: loading"
    assert lines[2].split() == ["studio/1", "M2", "8.0", "GiB", "serving", "toy", "0", "0-20"]
    assert lines[4:] == ["loads toy: studio/1 load toy 42%"], "the join code is shown once, not for ever"


def test_server_that_waits_says_for_what_and_how_to_add_a_machine() -> None:
    plan = {**PLAN, "predicted": None, "replicas": [], "waits_for": "the model needs more"}
    how = "to add a machine, type the command above there: parallax join ..."
    assert list(render_state({**STATE, "plan": dict(plan)}, KNOWN))[-2:] == ["it waits: the model needs more", how]
    alone = {**STATE, "nodes": [], "plan": {**plan, "waits_for": "no node has joined"}}
    assert list(render_state(alone, []))[1:] == ["no node has joined", how]


def test_look_at_a_real_server_counts_requests_and_tokens() -> None:
    now = [10.0]
    with Server() as server:
        view = RunView(server.several.models, lambda: now[0])
        assert server.run(view.look())[-1] == "requests: 0 running, 0 waiting, 0 tokens/s"
        server.complete("toy")
        now[0] += 2.0
        first, *_, last = server.run(view.look())
        assert first == "toy: ready"
        tokens = server.several.engine.stats()[0]
        assert last == "requests: 0 running, 0 waiting, 5 tokens/s", tokens
