from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from parallax_cluster.cli.nodes import app, hide_code, render
from parallax_core.base.errors import ParallaxError
from tests.support.peer import Peer

PROFILE = {"device": "M2", "memory": 8 * 2**30}
NODE: dict[str, Any] = {
    "node": "studio/1",
    "profile": PROFILE,
    "state": "serving",
    "model": "toy",
    "replica": 0,
    "layers": [0, 20],
    "idle_reason": None,
}
IDLE = {**NODE, "node": "mini/2", "profile": None, "state": "idle", "model": None, "replica": None, "layers": None}
PLAN = {
    "predicted": {"tokens_per_second": 76.88, "requests": 8, "token_seconds": 0.1, "first_token_seconds": 1.0},
    "replicas": [{"rank": 0, "measured_token_seconds": 0.0123}, {"rank": 1, "measured_token_seconds": None}],
    "waits_for": None,
    "join_command": "parallax join plx1abc",
}


def show(**given: Any) -> list[str]:
    return list(render({"replicas": [], **given}))


def test_table_shows_what_each_node_does() -> None:
    stages = [{"node": "studio/1", "relay": "head"}, {"node": "attic/1", "relay": None}, {"node": "desk/1"}]
    nodes = [NODE, {**IDLE, "idle_reason": "its memory is too small"}]
    cluster = {"nodes": nodes, "plan": PLAN, "replicas": [{"stages": stages}]}
    assert "\n".join(render(cluster)) == (
        "NODE      DEVICE  MEMORY   STATE    MODEL  REPLICA  LAYERS\n"
        "studio/1  M2      8.0 GiB  serving  toy    0        0-20\n"
        "mini/2    -       -        idle     -      -        -\n"
        "idle: mini/2: its memory is too small\n"
        "relayed: studio/1 reaches attic/1 over head\n"
        "predicted: 76.88 tokens/s for 8 requests at once, 100 ms per token of one\n"
        "measured: replica 0: 12.3 ms per step through its stages and links\n"
        "to join: parallax join plx1abc"
    )


def test_server_that_waits_says_for_what() -> None:
    plan = {**PLAN, "predicted": None, "replicas": [], "waits_for": "the model needs more", "join_command": None}
    assert show(nodes=[], plan=plan) == [
        "no node has joined",
        "it waits: the model needs more",
    ]


def test_code_is_hidden_unless_it_is_asked_for() -> None:
    cluster = {"nodes": [], "replicas": [], "plan": {**PLAN, "predicted": None, "replicas": []}}
    hide_code(cluster)
    assert list(render(cluster))[1:] == ["to join: parallax join CODE, which `parallax nodes --show-code` shows"]
    for plan in (None, {**PLAN, "join_command": None}):
        without: dict[str, Any] = {"nodes": [], "replicas": [], "plan": plan}
        hide_code(without)
        assert without["plan"] == plan


def test_server_without_a_plan_shows_its_nodes_only() -> None:
    assert len(show(nodes=[IDLE], plan=None)) == 2


def test_standbys_are_shown() -> None:
    plan = {**PLAN, "replicas": [], "standbys": ["desk/standby", "attic/standby"], "term": 2}
    lines = show(nodes=[], plan=plan)
    assert lines[2] == "standbys: desk/standby, attic/standby, for term 3"


def test_move_and_slow_node_are_shown() -> None:
    move = {"reason": "it is slow", "bytes": 3 * 2**30, "nodes": {"mini/2": 3 * 2**30}, "seconds": 12.34}
    plan = {**PLAN, "replicas": [], "move": {**move, "replicas": [0, 2]}}
    lines = show(nodes=[{**NODE, "slowdown": 2.15}, {**IDLE, "slowdown": 1.1}], plan=plan)
    assert lines[3] == "measured: studio/1: its steps take 2.1 times as long as predicted"
    assert lines[5] == "layers move: 3.0 GiB on mini/2 to load in about 12.3 s, replica 0, 2: it is slow"
    plan["move"] = {**move, "nodes": {}, "replicas": [1]}
    lines = show(nodes=[], plan=plan)
    assert lines[2] == "layers move: nothing to load, replica 1: it is slow"


def test_links_over_relays_and_links_that_do_not_exist_are_shown() -> None:
    links = [{"peer": "mini/2", "relay": "head"}, {"peer": "attic/1", "relay": None}, {"peer": "head"}]
    studio = {**NODE, "profile": {**PROFILE, "links": links}, "unreached": [f"n{number}" for number in range(10)]}
    stages = [{"node": "studio/1", "relay": "desk/3"}, {"node": "attic/1", "relay": None}]
    nodes = [studio, {**IDLE, "unreached": ["studio/1"]}]
    lines = show(nodes=nodes, plan=None, replicas=[{"stages": stages}])
    assert lines[3:] == [
        "relayed: studio/1 reaches mini/2 over head",
        "relayed: studio/1 reaches attic/1 over desk/3",
        "unreached: studio/1 does not reach n0, n1, n2, n3, n4, n5, n6, n7 and 2 more",
        "unreached: mini/2 does not reach studio/1",
    ]


def test_layers_are_moved_on_request(peer: Peer) -> None:
    given = CliRunner().invoke(app, ["--rebalance", "--url", peer.url], catch_exceptions=False)
    assert (given.exit_code, given.output) == (0, "")
    assert peer.asked == b"{}"


def test_server_whose_layers_do_not_move_says_so(peer: Peer) -> None:
    peer.status, peer.body = 404, b'{"error": {"message": "layers do not move on this server", "hint": "use another"}}'
    given = CliRunner().invoke(app, ["--rebalance", "--url", peer.url])
    assert isinstance(given.exception, ParallaxError)
    assert "layers do not move on this server" in given.exception.message


def test_drained_node_is_shown() -> None:
    drained = {**IDLE, "drained": True, "idle_reason": "it is drained"}
    lines = show(nodes=[{**NODE, "drained": True}, drained], plan={**PLAN, "drained": ["mini", "gone"]})
    assert [" draining " in lines[1], " drained " in lines[2]] == [True, True]
    assert "drained, and not here: gone" in lines


def test_draining_waits_until_the_machine_has_no_layers(peer: Peer) -> None:
    peer.body = json.dumps({"object": "cluster", "nodes": [{**NODE, "state": "idle"}, IDLE], "plan": PLAN}).encode()
    given = CliRunner().invoke(app, ["drain", "studio/1", "--url", peer.url], catch_exceptions=False)
    assert given.output == "studio is drained: it has no layers, and gets none\n"
    assert peer.asked == b"{}"


def test_draining_says_what_is_missing_elsewhere(peer: Peer) -> None:
    waits = {**PLAN, "waits_for": "the model needs 2 GiB"}
    peer.body = json.dumps({"object": "cluster", "nodes": [NODE, IDLE], "plan": waits}).encode()
    given = CliRunner().invoke(app, ["drain", "studio", "--url", peer.url])
    assert isinstance(given.exception, ParallaxError)
    assert given.exception.message.startswith("studio/1 keeps its layers, since no room is left elsewhere: ")
    assert given.exception.message.endswith("the model needs 2 GiB")


def test_drained_machine_is_taken_back(peer: Peer) -> None:
    given = CliRunner().invoke(app, ["resume", "studio/1", "--url", peer.url], catch_exceptions=False)
    assert (given.output, peer.asked) == ("studio may get layers again\n", b"{}")
