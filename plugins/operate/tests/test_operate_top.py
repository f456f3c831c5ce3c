"""``parallax top`` draws what the API says of a cluster, and nothing that a name could make of it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console, Group

from parallax_core.api import ParallaxError
from parallax_operate.top import Watch
from parallax_operate.top_view import find_longest, render

STAGE = {
    "stage": 0,
    "node": "mini/1",
    "layers": [0, 12],
    "device": "cpu",
    "pools": [{"used": 30, "total": 60}],
    "step_seconds": {"mean": 0.01, "median": 0.0125},
    "queued": 2,
    "tokens": 100,
}
REPLICA = {"model": "toy", "rank": 0, "drained": False, "running": 1, "waiting": 3}
NODE = {
    "node": "mini/1",
    "state": "serving",
    "drained": False,
    "model": "toy",
    "layers": [0, 12],
    "idle_reason": None,
    "profile": {"memory": 8_000_000_000, "links": [{"round_trip_seconds": 0.004}]},
}
REQUEST = {
    "id": "chatcmpl-1",
    "model": "toy",
    "state": "ended",
    "reason": "stop",
    "prompt_tokens": 7,
    "output_tokens": 5,
    "first_token_seconds": 0.25,
    "seconds": 2.0,
    "parts": [
        {"name": "decode", "seconds": 1.5},
        {"name": "stage 0", "seconds": 0.4},
        {"name": "hop 1", "seconds": 0.9},
    ],
}


def make_cluster(*stages: dict[str, Any], nodes: tuple[dict[str, Any], ...] = (NODE,)) -> dict[str, Any]:
    replica = {**REPLICA, "stages": list(stages)}
    return {"model": "toy", "status": "ready", "reason": "", "plan": None, "replicas": [replica], "nodes": list(nodes)}


def draw(group: Group) -> list[str]:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(group)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_state_is_drawn_with_its_stages_nodes_and_requests() -> None:
    lines = draw(render(make_cluster(STAGE), [REQUEST], 12.4))
    assert lines == [
        "toy ready 1 nodes 1 running 3 waiting 12 tokens/s",
        "toy, replica 0",
        "Stage Node Layers Device KV cache Step Queued",
        "0 mini/1 0-11 cpu ███░░░ 50% 12.5 ms 2",
        "Nodes",
        "Node State Does Memory Slowest link",
        "mini/1 serving toy, layers 0-11 8.0 GB 4.0 ms",
        "Requests",
        "Id Model State Prompt Output First token Time Mostly",
        "chatcmpl-1 toy stop 7 5 250 ms 2.0 s hop 1",
    ]


def test_server_that_has_nothing_yet_is_drawn() -> None:
    stage = {**STAGE, "node": "", "layers": None, "device": None, "pools": [], "step_seconds": None}
    cluster = make_cluster(stage, nodes=()) | {"model": "", "status": "starting", "reason": "no node"}
    cluster["plan"] = {"waits_for": "8 GB more"}
    lines = draw(render(cluster, [], None))
    assert lines[:2] == ["no model starting (no node) 0 nodes 1 running 3 waiting", "waits for 8 GB more"]
    assert "0 waits for a node 2" in lines


def test_name_of_a_node_is_no_markup_and_moves_no_cursor() -> None:
    [line] = [
        each
        for each in draw(render(make_cluster(nodes=({**NODE, "node": "[red]x\x1b[2J"},)), [], None))
        if "[red]" in each
    ]
    assert line.startswith("[red]x?[2J serving")


def test_longest_part_is_none_of_the_phases_that_have_others_in_them() -> None:
    assert find_longest(REQUEST["parts"]) == "hop 1"  # type: ignore[arg-type]
    assert find_longest([]) == ""


class Server:
    """Answers as a client of a server does."""

    def __init__(self) -> None:
        self.tokens = 100

    def read(self, path: str, kind: str) -> dict[str, Any]:
        if path.startswith("/requests"):
            assert kind == "list"
            raise ParallaxError("there is no such route")
        assert (path, kind) == ("/cluster", "cluster")
        return make_cluster({**STAGE, "tokens": self.tokens})


def test_tokens_are_counted_between_two_looks_also_without_the_route_of_requests() -> None:
    times, server = iter((10.0, 12.0, 13.0)), Server()
    watch = Watch(server, lambda: next(times))  # type: ignore[arg-type]
    assert "tokens/s" not in draw(watch.look())[0]
    server.tokens = 150
    assert draw(watch.look())[0].endswith(" 25 tokens/s")
    server.tokens = 0  # it was started again
    assert draw(watch.look())[0].endswith(" 0 tokens/s")


@pytest.mark.parametrize("used", [0, 60])
def test_bar_is_as_long_as_what_is_used(used: int) -> None:
    stage = {**STAGE, "pools": [{"used": used, "total": 60}]}
    assert f"{'█' * 6 if used else '░' * 6} {used / 60:.0%}" in draw(render(make_cluster(stage), [], None))[3]
