"""Two pipelines that lead through one node: real processes, keys and weights, and a policy of a plugin."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import Server
from tests.e2e.test_run import coordinating, homes, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until
from tests.unit.plugins.site import Site

__all__ = ["homes"]

HUB = """
from dataclasses import dataclass

from parallax_core.api import LayerRange, PlacedStage, Placement, PolicySpec, Ref, StageLease, hookimpl

@dataclass
class Hub:
    def place(self, problem, estimator):
        nodes = sorted((node for node in problem.cluster.nodes if node.leases), key=lambda node: -node.device.memory)
        hub, *others = [node.name for node in nodes] or [""]
        if not others or nodes[0].device.memory < 2.5e9:
            return Placement()
        holds, stop = LayerRange(0, 18), len(problem.model.layers)
        stages = [PlacedStage(hub, holds, StageLease(rank, holds, 1 / len(others))) for rank in range(len(others))]
        pairs = zip(stages, others)
        return Placement(tuple((stage, PlacedStage(other, LayerRange(18, stop))) for stage, other in pairs))

@hookimpl
def parallax_register_policies():
    return [PolicySpec(name="hub", kind="placement", summary="all through one", factory=Ref("{module}:Hub"))]
"""


def list_pids(server: Server) -> list[list[int]]:
    """Return the processes of the stages of each pipeline that answers."""
    ready = [each for each in Client(server.url).cluster()["replicas"] if each["status"] == "ready"]
    return [[stage["pid"] for stage in replica["stages"]] for replica in ready]


def count_loads(log: Path) -> int:
    """Return how often a node has loaded layers: each time the backend tests its kernels."""
    return len(re.findall(r"^\[.*selftest", log.read_text(), re.MULTILINE))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_node_in_two_pipelines_holds_its_layers_once(
    homes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    Site(tmp_path / "site").install("hub", HUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    logs = {name: tmp_path / f"{name}.log" for name in ("first", "one", "two", "three")}
    with ExitStack() as stack:
        options = ("--no-local", "--nodes", "3", "--placement", "hub", "--memory", "2")
        process, code = stack.enter_context(coordinating(homes["first"], logs["first"], *options))
        machines = {}
        for name, memory in (("one", "3"), ("two", "2"), ("three", "2")):
            join = ("join", "-v", "--backend", "mlx", "--memory", memory, "--no-api", code)
            machines[name] = stack.enter_context(started(homes[name], logs[name], *join)).pid
        server = read_ready(process, logs["first"])
        wait_until(lambda: len(list_pids(server)) == 2)
        assert sorted(list_pids(server)) == sorted([[machines["one"], machines[each]] for each in ("two", "three")])
        assert count_loads(logs["one"]) == 1
        texts = [read_stream(server, 0, lambda: None) for _ in range(4)]
        assert [text == texts[0] for text in texts] == [True] * 4, "whichever pipeline answers"

        kill = partial(os.kill, machines["three"], signal.SIGKILL)
        assert [read_stream(server, 12, kill), read_stream(server, 0, lambda: None)] == texts[:2]
        wait_until(lambda: list_pids(server) == [[machines["one"], machines["two"]]])
        assert count_loads(logs["one"]) == 1, "the layers have stayed"
        assert server.end(signal.SIGTERM) < 5
