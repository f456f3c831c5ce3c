"""Does every pair of machines serve the real model, whatever networks they are on?

    sudo python -m labs.nat_lab --out benchmarks/results/nat-lab.json

Machines are network namespaces; home routers are others, with rules of nftables (`labs.routers`). Each kind of
network is proved by a probe first, and ``parallax network`` has to name it. Then a server with a public
address runs ``parallax run --relay``, and two machines join it by a code, one on each network of a pair: neither has
room for the whole model, so that an answer takes both. Recorded is whether the answer is that of the whole model, and
by which connections the machines were linked, as the kernel lists them:

    direct   one machine has the other's public address as a peer, and that machine has no router
    punched  the same, through the routers of both
    relayed  both have only connections to the server
    none     there was no pipeline; ``said`` is the reason that the server gave

``links_s`` are the seconds from the moment when both had loaded their layers until both were linked, which is what
networks have an effect on; ``ready_s`` those from the start of the last ``parallax join``: most is the start of the
process, the measurement of the device and loading. Needs root, ``ip netns``, ``nft`` and ``ss``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labs.joining_times import API, PARALLAX, QUESTION, ROOM
from tests.support.namespaces import Machine, Process, network
from labs.punching import measure_punching
from benchmarks.record import describe_run, read_report, write_report
from labs.routers import DOCTOR_SAYS, EXPECTED, NETWORKS, OUTSIDE, attach, attach_server, has_tools, prove_all
from parallax_core.config.home import models_folder

LISTEN = {"zmq": f"tcp://{OUTSIDE[0]}:9000", "lattica": f"lattica://{OUTSIDE[0]}:9000"}
"""Where the server listens, by transport."""
BOUND_S = 5.0
"""Seconds within which both machines are linked."""
PATIENCE_S = 90.0
LOADED = "162.8 of 162.8 MB"
"""What a server says once a stage has loaded its half of the model."""
FAILED = "the pipeline cannot be built"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two machines that have joined a server."""

    server: Machine
    head: Process
    guests: tuple[Machine, Machine]
    addresses: tuple[str, str]
    """On the internet."""
    joining: tuple[Process, Process]

    def observe(self, whole: str) -> dict[str, Any]:
        """Return what became of them, once they serve or it is known that they do not."""
        if not self._wait():
            failed = self.head.find(FAILED)
            return {"path": "none", "said": (failed[1].partition("cannot be built: ")[2] if failed else self._end())}
        ready, _ = self.head.await_line("ready ")
        loaded = max((at for at, line in self.head.lines if LOADED in line), default=ready)
        answer = self.server.fetch(f"{API}/v1/chat/completions", QUESTION)
        text = answer["choices"][0]["message"]["content"] if answer else ""
        return {
            "path": self._find_path(),
            "is_right": text == whole,
            "links_s": round(ready - loaded, 2),
            "ready_s": round(ready - self.joining[1].begun, 2),
        }

    def _wait(self) -> bool:
        """Wait until they serve; return whether they do."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.head.find("ready ") is not None:
                return True
            if self.head.find(FAILED) is not None:
                return False
            time.sleep(0.02)
        return False

    def _end(self) -> str:
        """Return the last lines of all three."""
        ends = ["\n".join(line for _, line in each.lines[-2:]) for each in (self.head, *self.joining)]
        return "\n".join(ends)

    def _find_path(self) -> str:
        seen = [list_peers(machine) for machine in self.guests]
        if self.addresses[1] not in seen[0] and self.addresses[0] not in seen[1]:
            return "relayed"
        both = all(list_own(machine).isdisjoint(self.addresses) for machine in self.guests)
        return "punched" if both else "direct"


def list_peers(machine: Machine) -> set[str]:
    """Return the addresses at the other ends of a machine's TCP connections."""
    command = ("ip", "netns", "exec", machine.namespace, "ss", "-Htn", "state", "established")
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[3].rpartition(":")[0].removeprefix("[::ffff:").rstrip("]") for line in lines}


def list_own(machine: Machine) -> set[str]:
    """Return the addresses of a machine's interfaces."""
    command = ("ip", "-j", "-n", machine.namespace, "-4", "addr")
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {info["local"] for each in found for info in each["addr_info"]}


def try_pair(kinds: tuple[str, str], transport: str, folder: Path, models: Path, whole: str) -> dict[str, Any]:
    """Return what became of a pair of machines on networks of these kinds."""
    with network(folder, models, "server", "first", "second") as machines, ExitStack() as stack:
        server, *guests = machines
        attach_server(server)
        addresses = [
            attach(machine, kind, 10 + number) for number, (machine, kind) in enumerate(zip(guests, kinds, strict=True))
        ]
        share_cache(machines, folder.parent)
        words = (
            "run",
            "--relay",
            "--no-local",
            "--transport",
            transport,
            "--listen",
            LISTEN[transport],
            "--port",
            "8000",
        )
        head = stack.enter_context(server.running(PARALLAX, *words))
        code = head.await_line("parallax join ")[1].split()[2]
        joining = []
        for machine in guests:
            joining.append(stack.enter_context(machine.running(PARALLAX, "join", "--port", "0", *ROOM, code)))
            joining[-1].await_line("joined head=")
        pair = Pair(server, head, (guests[0], guests[1]), (addresses[0], addresses[1]), (joining[0], joining[1]))
        seen = pair.observe(whole)
    return {
        "transport": transport,
        "first": kinds[0],
        "second": kinds[1],
        "serves": seen.get("is_right", False),
        **seen,
    }


def share_cache(machines: Sequence[Machine], folder: Path) -> None:
    """Have machines share what they measure of their device, which is the same."""
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    for machine in machines:
        (machine.home / "cache").symlink_to(cache)


def answer_whole(folder: Path, models: Path) -> str:
    """Return the answer of one machine that has the whole model."""
    with network(folder, models, "alone") as (alone,), alone.running(PARALLAX, "serve", "--port", "8000") as process:
        process.await_line("ready ")
        return str(alone.fetch(f"{API}/v1/chat/completions", QUESTION)["choices"][0]["message"]["content"])


def prove_networks(folder: Path, models: Path) -> dict[str, Any]:
    """Return how each kind of network behaves, and what `parallax network` says of it."""
    with network(folder, models, "server", *EXPECTED) as (server, *machines):
        attach_server(server)
        named = dict(zip(EXPECTED, machines, strict=True))
        for number, (kind, machine) in enumerate(named.items(), 10):
            attach(machine, kind, number)
        found = prove_all(named, server)
        with server.running(PARALLAX, "run", "--no-local", "--listen", "tcp://0.0.0.0:9000", "--port", "8000") as head:
            code = head.await_line("parallax join ")[1].split()[2]
            for kind, machine in named.items():
                found[kind] |= ask_doctor(machine, code, DOCTOR_SAYS[kind])
        return found


def ask_doctor(machine: Machine, code: str, expected: str) -> dict[str, Any]:
    """Return what `parallax network` says on a machine that has not joined yet, and whether that is right."""
    environment = ("env", "https_proxy=http://192.0.2.1:3128") if expected == "proxy" else ()
    command = (PARALLAX, "doctor", "--network", "--json", "--ask", code)
    with machine.running(*command, before=environment) as process:
        process.await_line('"asked"')
        process.popen.wait()
        seconds = round(time.monotonic() - process.begun, 1)
        time.sleep(0.1)  # for the last lines
        report = json.loads("\n".join(line for _, line in process.lines))["network"]
    return {"doctor": report["kind"], "doctor_s": seconds, "is_named_rightly": report["kind"] == expected}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the report")
    parser.add_argument("--part", choices=("networks", "pairs", "punching"), help="measure one; the others are kept")
    parser.add_argument("--only", default="", help="try the pairs with this in TRANSPORT,FIRST,SECOND; others are kept")
    options = parser.parse_args(arguments)
    if os.geteuid() or not has_tools():
        parser.error("it needs root, `ip netns` and `nft`")
    models, report = models_folder().resolve(), read_report(options.out)
    packages = ["parallax-core", "parallax-transport-zmq", "parallax-transport-lattica", "pyzmq", "lattica"]
    with TemporaryDirectory(prefix="parallax-nat-") as name:
        folder = Path(name)
        if options.part in {None, "networks"}:
            report["networks"] = prove_networks(folder / "networks", models)
            print(json.dumps(report["networks"], indent=2), flush=True)
        if options.part in {None, "punching"}:
            report["punching"] = measure_punching(folder / "punching", models)
            print(json.dumps(report["punching"], indent=2), flush=True)
        write_report(options.out, report)
        if options.part in {None, "pairs"}:
            report |= describe_run(["labs.nat_lab"], packages)
            for pairs in try_pairs(folder / "pairs", models, options.only, report.get("pairs", ())):
                report |= {"pairs": pairs, **summarize(pairs)}
                write_report(options.out, report)
    if not all(each["is_as_named"] and each["is_named_rightly"] for each in report["networks"].values()):
        sys.exit("some networks are not of the kind that they are to be, or are not recognised")


def try_pairs(folder: Path, models: Path, only: str, known: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Try the pairs with ``only`` in their name; yield all results, with those that were known, after each."""
    whole = answer_whole(folder / "whole", models)
    rows = {(row["transport"], row["first"], row["second"]): row for row in known}
    cases = [(transport, first, second) for transport in LISTEN for first in NETWORKS for second in NETWORKS]
    for number, (transport, *kinds) in enumerate(cases):
        if only in ",".join((transport, *kinds)):
            row = try_pair((kinds[0], kinds[1]), transport, folder / str(number), models, whole)
            rows[transport, kinds[0], kinds[1]] = row
            print(json.dumps(row), flush=True)
            yield [rows[each] for each in cases if each in rows]


def summarize(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many pairs serve by each transport, and the longest time to link."""
    serving = [row for row in pairs if row["serves"]]
    return {
        "serve": {name: f"{sum(row['transport'] == name for row in serving)} of 9" for name in LISTEN},
        "bound_s": BOUND_S,
        "worst_links_s": max((row["links_s"] for row in serving), default=None),
    }


if __name__ == "__main__":
    main()
