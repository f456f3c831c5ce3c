"""Machines of `parallax run` some of which do not reach each other, each in a network namespace of its own.

Needs root and `ip netns`; elsewhere the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MODEL, PARALLAX
from tests.e2e.test_relay import API, QUESTION, part
from tests.e2e.test_run import ROOM
from tests.e2e.test_workers import wait_until
from tests.support.namespaces import Machine, Process, has_namespaces, network

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_namespaces(), reason="network namespaces need root and `ip netns`"),
]


@dataclass
class Cluster:
    """A server without layers, and the machines that have joined it, by number from 1."""

    machines: list[Machine]
    stack: ExitStack
    joined: dict[str, int] = field(default_factory=dict)
    """By process: the machine."""
    code: str = ""

    @property
    def head(self) -> Machine:
        return self.machines[0]

    def serve(self) -> Process:
        words = ("run", MODEL, "--no-local", "--port", "8000", "--listen", "tcp://10.77.0.1:9000")
        process = self.stack.enter_context(self.head.running(PARALLAX, *words))
        self.code = process.await_line("parallax join ")[1].split()[2]
        return process

    def join(self, number: int) -> None:
        words = (PARALLAX, "join", "--backend", "mlx", "--no-api", *ROOM, self.code)
        process = self.stack.enter_context(self.machines[number].running(*words))
        process.await_line("joined head=")
        self.joined[str(process.popen.pid)] = number

    def part(self, one: int, other: int) -> None:
        """Have two machines reach each other no longer."""
        part(self.machines[one], f"10.77.0.{other + 1}")
        part(self.machines[other], f"10.77.0.{one + 1}")

    def view(self) -> dict[str, Any]:
        return self.head.fetch(f"{API}/cluster")

    def number(self, node: str) -> int:
        return self.joined[node.rpartition("/")[2]]

    def list_unreached(self) -> set[tuple[int, int]]:
        nodes = self.view()["nodes"]
        return {(self.number(node["node"]), self.number(other)) for node in nodes for other in node["unreached"]}

    def list_hops(self) -> set[tuple[int, int]]:
        """Return the links over which pipelines that serve lead."""
        ready = [replica for replica in self.view()["replicas"] if replica["status"] == "ready"]
        return {
            (self.number(one["node"]), self.number(other["node"]))
            for replica in ready
            for one, other in pairwise(replica["stages"])
        }

    def ask(self, length: int) -> str:
        reply = self.head.fetch(f"{API}/chat/completions", {**QUESTION, "max_tokens": length})
        return str(reply["choices"][0]["message"]["content"])


@contextmanager
def cluster(model_home: Path, folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = stack.enter_context(network(folder, model_home / "models", "head", "one", "two", "three"))
        for number, machine in enumerate(made, 1):
            machine.ip("addr", "add", f"10.77.0.{number}/24", "dev", "lan0")
        yield Cluster(made, stack)


def test_pipelines_lead_over_links_that_exist(model_home: Path, tmp_path: Path) -> None:
    with cluster(model_home, tmp_path / "net") as found:
        found.part(1, 2)
        process = found.serve()
        found.join(1)
        found.join(2)
        wait_until(lambda: found.list_unreached() == {(1, 2), (2, 1)})
        wait_until(lambda: "a stage has to reach the next one" in found.view()["reason"])
        assert found.view()["status"] == "starting"

        found.join(3)
        process.await_line("ready http")
        hops = found.list_hops()
        assert all(3 in hop for hop in hops)
        [one] = {*hops.pop()} - {3}
        whole = found.ask(150)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(found.ask, 150)
            wait_until(lambda: found.view()["replicas"][0]["running"] > 0)
            found.part(one, 3)
            assert answer.result() == whole
        [hop] = found.list_hops()
        assert {*hop} == {1, 2, 3} - {one}
        lines = [line for _, line in process.lines]
        assert not any("Traceback" in line for line in lines)
