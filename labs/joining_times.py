"""How long joining, forwarding, losing a machine and restarting the coordinator take; part of `labs.joining`."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.namespaces import Machine, Process, network
from parallax_cluster.membership.join_code import shorten_code

PARALLAX = str(Path(sys.executable).with_name("parallax"))
ROUNDS = 5
ROOM = ("--memory", "0.2")
"""Less than the model takes, and more than half of it."""
RUN = ("run", "--listen", "tcp://0.0.0.0:9000", "--port", "8000", *ROOM)
QUESTION = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "Name a colour."}],
    "temperature": 0,
    "max_tokens": 16,
}
API = "http://127.0.0.1:8000"
PEER_TIMEOUT_S = 2.5
"""Seconds of silence after which a machine that has vanished is lost at the latest."""
PATIENCE_S = 120.0


def measure_times(folder: Path, models: Path) -> dict[str, Any]:
    """Return the seconds of each, with the bound where there is one."""
    return {
        **measure_listing(folder / "listing", models),
        **measure_cluster(folder / "cluster", models),
    }


def measure_listing(folder: Path, models: Path) -> dict[str, Any]:
    """Have new machines join an idle server, one after the other, and return when each was listed and could forward."""
    names = [f"{form}{number}" for number in range(ROUNDS) for form in ("short", "whole")]
    seconds: dict[str, list[float]] = {"short": [], "whole": [], "forwards": []}
    with network(folder, models, "server", *names) as (server, *guests), ExitStack() as stack:
        give_addresses([server, *guests])
        head = stack.enter_context(server.running(PARALLAX, *RUN, "--no-local"))
        code = head.await_line("parallax join ")[1].split()[2]
        head.await_line("no pipeline")
        for name, guest in zip(names, guests, strict=True):
            form = name.rstrip("0123456789")
            word = shorten_code(code) if form == "short" else code
            with guest.running(PARALLAX, "join", *ROOM, word) as process:
                seconds[form].append(head.await_line("node joined", since=process.begun)[0] - process.begun)
                begun = process.await_line("joined head=")[0]
                url = process.await_line("API ")[1].split()[1]
                await_that(lambda url=url, guest=guest: bool(guest.fetch(f"{url}/models")))  # type: ignore[misc]
                seconds["forwards"].append(time.monotonic() - begun)
    return {
        "listed_by_short_code": describe(seconds["short"], 3.0),
        "listed_by_whole_code": describe(seconds["whole"], 5.0),
        "forwards_after_joining": describe(seconds["forwards"], 2.0),
    }


def measure_cluster(folder: Path, models: Path) -> dict[str, Any]:
    """Return times of a cluster of three machines, of which no machine has room for the model."""
    found: dict[str, Any] = {}
    with network(folder, models, "server", "one", "two", "three") as machines, ExitStack() as stack:
        server, one, two, three = machines
        give_addresses(machines)
        begun = time.monotonic()
        head = stack.enter_context(server.running(PARALLAX, *RUN))
        code = head.await_line("parallax join ")[1].split()[2]
        joined = [stack.enter_context(each.running(PARALLAX, "join", *ROOM, code)) for each in (one, two)]
        head.await_line("ready ")
        whole = ask(one)
        found["first_answer_of_a_split_model"] = describe([time.monotonic() - begun], 60.0)

        head.end()
        time.sleep(1.0)
        again = stack.enter_context(server.running(PARALLAX, *RUN))
        found.update(measure_restart(head, again, joined))
        await_that(lambda: ask(one) == whole)
        views = [(server, API), (one, API)]
        node = find_node(joined[1])
        began = time.monotonic()
        joined[1].end()
        await_gone(views, node)
        found["killed_machine_gone_from_every_view"] = describe([time.monotonic() - began], 2.0)

        last = stack.enter_context(three.running(PARALLAX, "join", *ROOM, code))
        node = find_node(last)
        await_that(lambda: node in list_nodes(server, API))
        began = time.monotonic()
        three.ip("link", "set", "lan0", "down")
        await_gone(views, node)
        found["vanished_machine_gone_from_every_view"] = describe([time.monotonic() - began], PEER_TIMEOUT_S + 1)
    return found


def measure_restart(head: Process, again: Process, joined: Iterable[Process]) -> dict[str, Any]:
    """Return when a coordinator that was started again served on, and what had to be loaded for that."""
    back = max(each.await_line("joined head=", since=again.begun)[0] for each in joined)
    ready, _ = again.await_line("ready ")
    loads = sorted({line for _, line in again.lines if line.startswith("stage ") and ": load " in line})
    return {
        "restarted_coordinator_has_all_machines_again": describe([back - again.begun]),
        "restarted_coordinator_serves": describe([ready - again.begun]),
        "plan_before_the_restart": list_plans(head)[-1],
        "plans_after_the_restart": list_plans(again),
        "loads_after_the_restart": loads,
    }


def list_plans(head: Process) -> list[str]:
    """Return what a coordinator has said of its first pipeline, each time."""
    mark = "pipeline 0 has "
    return [line.partition(mark)[2] for _, line in head.lines if mark in line]


def give_addresses(machines: Iterable[Machine]) -> None:
    """Give each machine an address of one network."""
    for number, machine in enumerate(machines, 1):
        machine.ip("addr", "add", f"10.77.0.{number}/24", "dev", "lan0")


def find_node(process: Process) -> str:
    """Return the name of the node of a machine that joins."""
    return process.await_line("joining ")[1].split()[3]


def list_nodes(machine: Machine, url: str) -> list[str]:
    """Return the nodes that a machine sees."""
    return [node["node"] for node in machine.fetch(f"{url}/v1/cluster").get("nodes", [])]


def await_gone(views: Iterable[tuple[Machine, str]], node: str) -> None:
    """Wait until no machine sees a node."""
    for machine, url in views:
        await_that(lambda machine=machine, url=url: bool(seen := list_nodes(machine, url)) and node not in seen)  # type: ignore[misc]


def ask(machine: Machine) -> str:
    """Return the answer to `QUESTION`, as a client on a machine gets it; empty: there is none."""
    answer = machine.fetch(f"{API}/v1/chat/completions", QUESTION)
    return str(answer["choices"][0]["message"]["content"]) if answer else ""


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: if it never is.
    """
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)


def describe(seconds: list[float], bound_s: float | None = None) -> dict[str, Any]:
    """Return the median and the largest of some times, and their bound."""
    found = {"median": round(statistics.median(seconds), 2), "worst": round(max(seconds), 2), "runs": len(seconds)}
    return found if bound_s is None else {**found, "bound": bound_s, "is_within": max(seconds) <= bound_s}
