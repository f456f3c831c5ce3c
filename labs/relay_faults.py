"""Kills and stops relays under load, and cuts the direct path between two machines, each in a network namespace.

    python -m labs.relay_faults --out benchmarks/results/relay-faults.json

Two machines that can only dial out run a stage each of SmolLM2; two others relay. Under four requests at a time, the
relay in use is killed and stopped in turns, each time started again, and the cable between the machines is taken away
and put back. For each fault the report has the seconds until the pipeline was ready again, by the log of the server,
and whether all answers were those of an undisturbed run. The bound for a path that changes is the time in which
silence is noticed, 2.5 s, plus 2 s. Needs root, `ip netns` and `nft`.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from labs.joining_times import PARALLAX
from tests.support.namespaces import Machine, Process, network, run
from benchmarks.record import describe_run, write_report
from labs.routers import has_tools
from parallax_core.config.home import models_folder

API = "http://127.0.0.1:8000/v1"
BOUND_S = 2.5 + 2.0
MOST_S = 60.0
ONLY_OUT = (
    "add table inet wall; add chain inet wall input { type filter hook input priority 0; policy drop; }; "
    "add rule inet wall input ct state established,related accept; add rule inet wall input iifname lo accept; "
    "add rule inet wall input iifname cable accept"
)
QUESTIONS = ("Count to fifty.", "Name ten cities.", "What is rain?", "Tell a story.")


class Cluster:
    """A server, two machines with a stage each, and two relays."""

    def __init__(self, machines: list[Machine], stack: ExitStack) -> None:
        self.server, self.one, self.two, *self.relay_machines = machines
        self._stack = stack
        self._code = ""
        self._hit = 0
        """The process of the relay that was hit last."""
        self.relays: list[Process] = []
        self.head = self._serve()

    def _serve(self) -> Process:
        for number, machine in enumerate((self.server, self.one, self.two, *self.relay_machines), 1):
            machine.ip("addr", "add", f"10.77.0.{number}/24", "dev", "lan0")
        ends = ("type", "veth", "peer", "name")
        run("ip", "link", "add", "cable", "netns", self.one.namespace, *ends, "cable", "netns", self.two.namespace)
        for number, machine in enumerate((self.one, self.two), 1):
            machine.ip("addr", "add", f"10.78.0.{number}/24", "dev", "cable")
            machine.ip("link", "set", "cable", "up")
            run("ip", "netns", "exec", machine.namespace, "nft", ONLY_OUT)
        words = ("run", "--no-local", "--nodes", "2", "--port", "8000", "--memory", "0.2")
        head = self._stack.enter_context(self.server.running(PARALLAX, *words))
        self._code = head.await_line("parallax join ")[1].split()[2]
        for machine in self.relay_machines:
            self.relays.append(self.start_relay(machine))
        join = (PARALLAX, "join", "--backend", "mlx", "--memory", "0.2", "--no-api", self._code)
        for machine in (self.one, self.two):
            listen = ("--listen", "tcp://10.78.0.2:0" if machine is self.two else "tcp://10.78.0.1:0")
            self._stack.enter_context(machine.running(*join, *listen)).await_line("joined head=")
        head.await_line("ready http")
        return head

    def start_relay(self, machine: Machine) -> Process:
        """Start the relay of a machine."""
        process = self._stack.enter_context(machine.running(PARALLAX, "relay", self._code))
        process.await_line("relays for the nodes")
        return process

    def find_relay(self) -> str:
        """Return the relay in use; empty: the machines are linked directly."""
        stages = self.server.fetch(f"{API}/cluster")["replicas"][0]["stages"]
        return str(stages[0]["relay"] or "")

    def ask(self, question: str) -> str:
        """Return the answer to a question."""
        messages = [{"role": "user", "content": question}]
        body = {"model": "smollm2-135m", "messages": messages, "temperature": 0, "max_tokens": 120}
        return str(self.server.fetch(f"{API}/chat/completions", body)["choices"][0]["message"]["content"])

    def disturb(self, fault: Callable[[], None]) -> dict[str, Any]:
        """Have a fault happen in the midst of answers; return how long the pipeline was away, and the answers."""
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            answers = [pool.submit(self.ask, question) for question in QUESTIONS]
            time.sleep(1.0)
            begun = time.monotonic()
            fault()
            ready, _ = self.head.await_line("pipeline is ready again", MOST_S, begun)
            return {"seconds": round(ready - begun, 2), "answers": [answer.result() for answer in answers]}

    def hit_relay(self, sign: signal.Signals) -> None:
        """Send a signal to the relay in use."""
        self._hit = int(self.find_relay().rpartition("/")[2])
        os.kill(self._hit, sign)

    def mend_relay(self) -> None:
        """Start the relay that was hit again."""
        number = [relay.popen.pid for relay in self.relays].index(self._hit)
        self.relays[number].end()
        self.relays[number] = self.start_relay(self.relay_machines[number])

    def until_direct(self) -> float:
        """Wait until the machines are linked directly, and return the seconds that took."""
        begun = time.monotonic()
        while self.find_relay():
            if time.monotonic() > begun + MOST_S:
                raise TimeoutError("the machines are still linked over a relay")
            time.sleep(0.1)
        return round(time.monotonic() - begun, 2)


def try_faults(cluster: Cluster, rounds: int) -> list[dict[str, Any]]:
    """Try each fault ``rounds`` times."""
    whole, rows = [cluster.ask(question) for question in QUESTIONS], []
    for _ in range(rounds):
        cluster.until_direct()
        cut = partial(cluster.two.ip, "link", "set", "cable", "down")
        faults = (("path", cut), ("kill", partial(cluster.hit_relay, signal.SIGKILL)))
        for name, fault in (*faults, ("stop", partial(cluster.hit_relay, signal.SIGSTOP))):
            found = cluster.disturb(fault)
            row = {"fault": name, "seconds": found["seconds"], "bound_s": BOUND_S, "relay": bool(cluster.find_relay())}
            rows.append({**row, "is_same": found["answers"] == whole})
            print(rows[-1], flush=True)
            if name != "path":
                cluster.mend_relay()
        cluster.two.ip("link", "set", "cable", "up")
        rows.append({"fault": "path is back", "seconds": cluster.until_direct(), "is_same": True})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if os.geteuid() or not has_tools():
        parser.error("it needs root, `ip netns` and `nft`")
    names = ("server", "one", "two", "relay1", "relay2")
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, ExitStack() as stack:
        machines = stack.enter_context(network(Path(folder), models_folder().resolve(), *names))
        rows = try_faults(Cluster(machines, stack), given.rounds)
    command = ["labs.relay_faults", "--rounds", str(given.rounds)]
    write_report(given.out, {"faults": rows, **describe_run(command, ["pyzmq"])})


if __name__ == "__main__":
    main()
