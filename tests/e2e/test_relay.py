"""Machines that cannot reach each other, each in a network namespace of its own, whose stages are linked over a relay.

Needs root and `ip netns`; elsewhere the tests are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MODEL, PARALLAX, Server
from tests.e2e.test_workers import wait_until
from tests.support.namespaces import Machine, Process, has_namespaces, network, run

NOBODY = "02:00:00:00:00:99"
"""An address of hardware that no machine has."""
VETH = ("type", "veth", "peer", "name")
API = "http://127.0.0.1:8000/v1"
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "Name three colours."}], "temperature": 0}


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="network namespaces need root and `ip netns`")


def part(machine: Machine, address: str) -> None:
    """Have what a machine sends to ``address`` vanish, as behind a firewall."""
    machine.ip("neigh", "replace", address, "lladdr", NOBODY, "dev", "lan0")


@contextmanager
def machines(model_home: Path, folder: Path, *names: str) -> Iterator[list[Machine]]:
    """Make machines at one switch with addresses 10.77.0.1, 2, ...; all but the first reach only the first."""
    with network(folder, model_home / "models", *names) as made:
        addresses = [f"10.77.0.{number}" for number in range(1, len(made) + 1)]
        for machine, address in zip(made, addresses, strict=True):
            machine.ip("addr", "add", f"{address}/24", "dev", "lan0")
        for one, other in permutations(range(1, len(made)), 2):
            part(made[one], addresses[other])
        yield made


def call(machine: Machine, *words: str) -> str:
    """Run a command on a machine to its end, and return what it said."""
    with machine.running(PARALLAX, *words) as process:
        assert process.popen.wait(60) == 0
        wait_until(lambda: bool(process.lines))
        return process.lines[0][1]


def ask(machine: Machine, length: int) -> str:
    reply = machine.fetch(f"{API}/chat/completions", {**QUESTION, "max_tokens": length})
    return str(reply["choices"][0]["message"]["content"])


def list_relays(machine: Machine) -> list[Any]:
    [replica] = machine.fetch(f"{API}/cluster")["replicas"]
    return [stage["relay"] for stage in replica["stages"]]


@contextmanager
def serving(head: Machine, others: Sequence[tuple[Machine, tuple[str, ...]]], *options: str) -> Iterator[Process]:
    """Serve over machines that join by a code, with options of their own, one for each stage in this order."""
    call(head, "keys", "new")
    with ExitStack() as stack:
        words = ("serve", MODEL, "--listen", "tcp://10.77.0.1:9000", *options)
        process = stack.enter_context(head.running(PARALLAX, *words))
        process.await_line("head listens at")
        code = call(head, "cluster", "codes", "new", "--uses", str(len(others))).split()[2]
        for machine, own in others:
            joining = (PARALLAX, "join", "--backend", "mlx", "--no-api", *own, code)
            stack.enter_context(machine.running(*joining)).await_line("joined head=")
        process.await_line("ready http")
        yield process


def read_whole(server: Server, length: int) -> str:
    """Return what a server that has the whole model answers."""
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        question: Any = QUESTION
        reply = client.chat.completions.create(**question, max_tokens=length)
        return str(reply.choices[0].message.content)


@pytest.mark.nightly
def test_three_stages_over_a_relay_equal_the_whole(server: Server, model_home: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        head, *others = stack.enter_context(machines(model_home, tmp_path / "net", "head", "one", "two", "three"))
        options = ("--layers", "0-10,10-20,20-30", "--relay")
        stack.enter_context(serving(head, [(each, ()) for each in others], *options))
        assert list_relays(head) == ["head", "head", None]
        assert ask(head, 24) == read_whole(server, 24)


@pytest.mark.nightly
def test_answer_goes_on_when_the_path_between_two_machines_changes(
    server: Server, model_home: Path, tmp_path: Path
) -> None:
    whole = read_whole(server, 150)
    with ExitStack() as stack:
        head, one, two = stack.enter_context(machines(model_home, tmp_path / "net", "head", "one", "two"))
        run("ip", "link", "add", "lan1", "netns", one.namespace, *VETH, "lan1", "netns", two.namespace)
        for machine, address in ((one, "10.78.0.1/24"), (two, "10.78.0.2/24")):
            machine.ip("addr", "add", address, "dev", "lan1")
            machine.ip("link", "set", "lan1", "up")
        others = [(one, ()), (two, ("--listen", "tcp://10.78.0.2:0"))]
        process = stack.enter_context(serving(head, others, "--layers", "0-15,15-30", "--relay"))
        assert list_relays(head) == [None, None]
        begun = len(process.lines)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, head, 150)
            wait_until(lambda: head.fetch(f"{API}/cluster")["replicas"][0]["stages"][0]["steps"] > 5)
            two.ip("link", "set", "lan1", "down")
            assert answer.result() == whole
        assert list_relays(head) == ["head", None]
        assert sum("pipeline is built anew" in line for _, line in process.lines[begun:]) == 1

        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(ask_until, head, lambda: list_relays(head) == [None, None])
            two.ip("link", "set", "lan1", "up")
            assert set(answers.result()) == {ask(head, 20)}
        assert sum("pipeline is built anew" in line for _, line in process.lines[begun:]) == 1, "no request was moved"


def ask_until(machine: Machine, condition: Callable[[], bool]) -> list[str]:
    """Ask again and again, and once more after a condition is true; return the answers."""
    answers = [ask(machine, 20)]
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        answers.append(ask(machine, 20))
    return [*answers, ask(machine, 20)]
