"""Does a machine join, or say why not, on every kind of network, and how long does that take?

    sudo python -m labs.joining --out benchmarks/results/joining.json

Machines are network namespaces at a switch. One runs ``parallax run``, another ``parallax join`` in each of ten
situations, first with the whole code, which has addresses, and then with its short form, which has none. Within 5 s of
its start the command has joined, or has said why not; ``expected`` names the cases in which it cannot join. Nothing is
measured with other keys: each case has new homes, and a copy of the models.

The times of `labs.joining_times` follow. Needs root, ``ip netns``, and ``faketime`` for the wrong clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labs.joining_times import measure_times
from tests.support.namespaces import Machine, Process, network
from benchmarks.record import describe_run, read_report, write_report
from parallax_cluster.membership.join_code import shorten_code
from parallax_core.config.home import models_folder

PARALLAX = str(Path(sys.executable).with_name("parallax"))
BOUND_S = 5.0
"""Seconds within which a machine has joined, or says why not."""
SETTLE_S = 0.3
"""Seconds within which a server turns a node away that has just joined."""
LISTEN = "tcp://[::]:9000"
STALE = "import socket, time; s = socket.create_server(('', 9000)); print('taken', flush=True); time.sleep(60)"
SetUp = Callable[[Machine, Machine], None]


def give_ipv4(server: Machine, guest: Machine) -> None:
    """Give both an address of one IPv4 network."""
    server.ip("addr", "add", "10.77.0.1/24", "dev", "lan0")
    guest.ip("addr", "add", "10.77.0.2/24", "dev", "lan0")


def give_ipv6(server: Machine, guest: Machine) -> None:
    """Give both an address of one IPv6 network."""
    server.ip("addr", "add", "fd77::1/64", "dev", "lan0", "nodad")
    guest.ip("addr", "add", "fd77::2/64", "dev", "lan0", "nodad")


def drop_multicast(server: Machine, guest: Machine) -> None:
    """Have the network of the guest drop all multicasts and broadcasts."""
    give_ipv4(server, guest)
    for family, group in (("-4", "10.77.0.255/32"), ("-6", "ff12::/16")):
        guest.ip(family, "rule", "add", "pref", "10", "to", group, "prohibit")
        guest.ip(family, "rule", "add", "pref", "100", "lookup", "local")
        guest.ip(family, "rule", "del", "pref", "0")


def use_two_subnets(server: Machine, guest: Machine) -> None:
    """Put the guest behind a router, in a network of its own."""
    server.ip("addr", "add", "10.77.0.1/24", "dev", "lan0")
    router = guest.add_router("10.77.0.9/24", "10.78.0.9/24")
    guest.ip("addr", "add", "10.78.0.2/24", "dev", "lan0")
    guest.ip("route", "add", "default", "via", "10.78.0.9")
    server.ip("route", "add", "10.78.0.0/24", "via", router)


def add_docker(server: Machine, guest: Machine) -> None:
    """Give both a bridge with the same address before that of their network."""
    for machine in (server, guest):
        machine.add_bridge("docker0", "172.17.0.1/16")
    give_ipv4(server, guest)


def add_vpn(server: Machine, guest: Machine) -> None:
    """Route all else through a tunnel that leads nowhere."""
    for machine, address in ((server, "10.8.0.1/24"), (guest, "10.9.0.1/24")):
        machine.add_bridge("vpn0", address)
        machine.ip("route", "add", "default", "dev", "vpn0")
    give_ipv4(server, guest)


def drop_answers(server: Machine, guest: Machine) -> None:
    """Let the questions of the guest through, and no answers of the server."""
    give_ipv4(server, guest)
    server.ip("route", "add", "blackhole", "10.77.0.2/32")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A situation of a machine that joins."""

    name: str
    set_up: SetUp
    before: tuple[str, ...] = ()
    """Words before the command on the machine that joins."""
    joins: tuple[bool, bool] = (True, True)
    """Whether it can join by the whole code, and by the short one."""
    is_copy: bool = False
    """Whether the machine is a copy of one that has joined: the same keys and number of the process."""
    is_stale: bool = False
    """Whether another process has the server's port by then."""


FAKE_CLOCK = ("env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", "+400d")
CASES = (
    Case(name="IPv4 only", set_up=give_ipv4),
    Case(name="IPv6 only", set_up=give_ipv6),
    Case(name="multicast and broadcast dropped", set_up=drop_multicast, joins=(True, False)),
    Case(name="two subnets", set_up=use_two_subnets, joins=(True, False)),
    Case(name="docker0 with the same address on both", set_up=add_docker),
    Case(name="VPN interface up", set_up=add_vpn),
    Case(name="asymmetric firewall", set_up=drop_answers, joins=(False, False)),
    Case(name="wrong clock", set_up=give_ipv4, before=FAKE_CLOCK),
    Case(name="duplicate node id", set_up=give_ipv4, joins=(False, False), is_copy=True),
    Case(name="stale process on the port", set_up=give_ipv4, joins=(False, False), is_stale=True),
)
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Has a command be process 1, as in a container."""


def write_join(*words: str) -> tuple[str, ...]:
    """Return the command by which a machine joins."""
    return (PARALLAX, "join", "--port", "0", "--memory", "0.1", *words)


def observe(process: Process) -> dict[str, Any]:
    """Wait until a machine has joined, or says why not."""
    until = process.begun + 4 * BOUND_S
    while time.monotonic() < until:
        if process.find("no head at ") is None and (found := process.find("joined head=")) is not None:
            time.sleep(SETTLE_S)
            if process.find("no head at ") is not None:
                continue
            return {"outcome": "joined", "seconds": round(found[0] - process.begun, 2), "said": ""}
        for mark in ("error: ", "no head at "):
            if (found := process.find(mark)) is not None:
                hint = process.find("hint: ")
                said = " ".join([found[1].partition(mark)[2], hint[1] if hint else ""]).strip()
                return {"outcome": "refused", "seconds": round(found[0] - process.begun, 2), "said": said}
        time.sleep(0.01)
    return {"outcome": "silent", "seconds": 4 * BOUND_S, "said": "\n".join(line for _, line in process.lines)}


def try_case(case: Case, folder: Path, models: Path) -> list[dict[str, Any]]:
    """Have a machine join by both forms of a code."""
    found = []
    with network(folder, models, "server", "guest", "other") as (server, guest, other), ExitStack() as stack:
        case.set_up(server, guest)
        run_words = ("run", "--no-local", "--listen", LISTEN, "--port", "0")
        with server.running(PARALLAX, *run_words) as head:
            code = head.await_line("parallax join ")[1].split()[2]
            head.await_line("no pipeline")  # it is idle from now on
            if case.is_copy:
                other.ip("addr", "add", "10.77.0.3/24", "dev", "lan0")
                first = stack.enter_context(other.running(*write_join(code), before=ALONE))
                first.await_line("joined head=")
                shutil.copytree(other.home / "keys", guest.home / "keys")
            if case.is_stale:
                head.end()
                stack.enter_context(server.running(sys.executable, "-c", STALE)).await_line("taken")
            before = ALONE if case.is_copy else case.before
            for form, word, can_join in zip(("whole", "short"), (code, shorten_code(code)), case.joins, strict=True):
                with guest.running(*write_join(word), before=before) as process:
                    seen = observe(process)
                expected = "joined" if can_join else "refused"
                is_right = seen["outcome"] == expected and seen["seconds"] <= BOUND_S
                found.append({"case": case.name, "code": form, "expected": expected, **seen, "is_right": is_right})
                print(json.dumps(found[-1]), flush=True)
    return found


def try_cases(folder: Path, models: Path, only: str) -> dict[str, Any]:
    """Return what happened in the cases with ``only`` in their name."""
    chosen = [case for case in CASES if only in case.name]
    found = [each for number, case in enumerate(chosen) for each in try_case(case, folder / str(number), models)]
    return {"bound_s": BOUND_S, "right": sum(each["is_right"] for each in found), "cases": found}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the report")
    parser.add_argument("--only", help="try the cases with this text in their name, and keep no report")
    parser.add_argument(
        "--part", choices=("cases", "times"), help="measure one part; the other is kept as it is in OUT"
    )
    options = parser.parse_args(arguments)
    if os.geteuid() or not shutil.which("ip") or not shutil.which("faketime"):
        parser.error("it needs root, `ip` and `faketime`")
    models, report = models_folder().resolve(), read_report(options.out)
    report |= describe_run(["labs.joining"], ["parallax-core", "parallax-transport-zmq", "pyzmq"])
    with TemporaryDirectory(prefix="parallax-join-") as folder:
        if options.part != "times":
            report |= try_cases(Path(folder), models, options.only or "")
        if options.part != "cases" and not options.only:
            report |= {"times": measure_times(Path(folder), models)}
            print(json.dumps(report["times"], indent=2))
    write_report(None if options.only else options.out, report)
    if not all(each["is_right"] for each in report.get("cases", ())):
        sys.exit("some cases are not as expected")


if __name__ == "__main__":
    main()
