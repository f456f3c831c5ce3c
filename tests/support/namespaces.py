"""Machines that are network namespaces of Linux, with a switch between them; needs root and `ip netns`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET, for setns."""
PREFIX = f"plx{os.getpid()}"
SWITCH = f"{PREFIX}-sw"
"""The namespace of the switch."""


def run(*command: str) -> str:
    """Run a command, which must succeed, and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def enter(namespace: str) -> None:
    """Move this thread into a network namespace.

    Raises:
        OSError: if it may not.
    """
    with Path(f"/run/netns/{namespace}").open("rb") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "the namespace cannot be entered", namespace)


def has_namespaces() -> bool:
    """Return whether this process may make network namespaces."""
    space = f"{PREFIX}-try"
    try:
        run("ip", "netns", "add", space)
        run("ip", "netns", "del", space)
    except (OSError, subprocess.CalledProcessError):  # there is no `ip`, or it needs root
        return False
    return True


@dataclass(slots=True)
class Process:
    """A command on a machine, whose lines are kept with the times at which they were read."""

    popen: subprocess.Popen[str]
    begun: float
    lines: list[tuple[float, str]] = field(default_factory=list)

    def read(self) -> None:
        """Read lines until the command has closed its output, and close it."""
        assert self.popen.stdout is not None
        with suppress(ValueError), self.popen.stdout as output:
            for line in output:
                self.lines.append((time.monotonic(), line.rstrip("\n")))

    def find(self, text: str, since: float = 0.0) -> tuple[float, str] | None:
        """Return the first line with a text, and its time; None: there is none yet."""
        return next(((at, line) for at, line in list(self.lines) if text in line and at >= since), None)

    def await_line(self, text: str, timeout_s: float = 120.0, since: float = 0.0) -> tuple[float, str]:
        """Wait for a line with a text.

        Raises:
            TimeoutError: if there is none in time; with what was said instead.
        """
        until = time.monotonic() + timeout_s
        while (found := self.find(text, since)) is None:
            if time.monotonic() > until:
                said = "\n".join(line for _, line in self.lines)
                raise TimeoutError(f"no {text!r} within {timeout_s:g} s:\n{said}")
            time.sleep(0.005)
        return found

    def await_end(self, timeout_s: float = 120.0) -> list[str]:
        """Wait until the command has ended, and return its lines.

        Raises:
            TimeoutError: if it does not end in time.
        """
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"it has not ended within {timeout_s:g} s") from error
        time.sleep(0.1)  # for the last lines
        return [line for _, line in self.lines]

    def end(self) -> None:
        """Kill the command, and the processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace with a home and a host name of its own."""

    name: str
    home: Path

    @property
    def namespace(self) -> str:
        """The name of the namespace."""
        return f"{PREFIX}-{self.name}"

    @property
    def router(self) -> str:
        """The name of the namespace of its router."""
        return f"{self.namespace}-r"

    @property
    def router_port(self) -> str:
        """The interface of the switch that leads to its router."""
        return f"r-{self.name}"[:15]

    def move_in(self, models: Path) -> None:
        """Make its home, with the models, and with what is cached of them beside them."""
        (self.home / "tmp").mkdir(parents=True)
        (self.home / "models").symlink_to(models)
        if (cached := models.with_name("cache")).is_dir():
            (self.home / "cache").symlink_to(cached)

    def ip(self, *command: str) -> None:
        """Configure its network."""
        run("ip", "-n", self.namespace, *command)

    def add_bridge(self, name: str, address: str) -> None:
        """Add an interface that leads nowhere, such as that of a container engine."""
        self.ip("link", "add", name, "type", "bridge")
        self.ip("addr", "add", address, "dev", name)
        self.ip("link", "set", name, "up")

    def add_router(self, outside: str, inside: str) -> str:
        """Put a router between this machine and the switch; return its address there.

        Args:
            outside: the router's address at the switch, with its network.
            inside: its address on the side of this machine.
        """
        space, port = self.router, self.router_port
        run("ip", "netns", "add", space)
        run("ip", "netns", "exec", space, "sysctl", "-q", "net.ipv4.ip_forward=1")
        self.ip("link", "del", "lan0")
        ends = ("type", "veth", "peer", "name")
        run("ip", "-n", SWITCH, "link", "add", port, *ends, "out", "netns", space)
        run("ip", "-n", space, "link", "add", "in", *ends, "lan0", "netns", self.namespace)
        run("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
        for name, address in (("out", outside), ("in", inside)):
            run("ip", "-n", space, "addr", "add", address, "dev", name)
            run("ip", "-n", space, "link", "set", name, "up")
        self.ip("link", "set", "lan0", "up")
        return outside.partition("/")[0]

    @contextmanager
    def running(self, *command: str, before: Sequence[str] = ()) -> Iterator[Process]:
        """Run a command there, after the words of ``before``; kill it at the end."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name)
        words = ["ip", "netns", "exec", self.namespace, *named, *before, *command]
        homes = {name: str(self.home) for name in ("HOME", "PARALLAX_HOME")}
        env = {**os.environ, **homes, "TMPDIR": str(self.home / "tmp"), "OPENBLAS_NUM_THREADS": "1"}
        begun = time.monotonic()
        popen = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
        )
        process = Process(popen, begun)
        reader = threading.Thread(target=process.read, daemon=True)
        reader.start()
        try:
            yield process
        finally:
            process.end()
            reader.join()

    def fetch(self, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON at a URL, as a client on this machine gets it; empty: there is no answer.

        A thread of its own enters the namespace for that.
        """
        found: list[dict[str, Any]] = []

        def work() -> None:
            enter(self.namespace)
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as response:
                found.append(json.load(response))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0] if found else {}


@contextmanager
def network(folder: Path, models: Path, *names: str) -> Iterator[list[Machine]]:
    """Make machines without addresses, each with an interface ``lan0`` at the same switch, and the models."""
    machines = [Machine(name, folder / name) for name in names]
    spaces = [SWITCH, *(each.namespace for each in machines)]
    routers = [each.router for each in machines]
    try:
        for space in spaces:
            run("ip", "netns", "add", space)
        run("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", SWITCH, "link", "set", "br0", "up")
        for number, each in enumerate(machines):
            each.move_in(models)
            port = f"port{number}"
            ends = ("netns", SWITCH, "type", "veth", "peer", "name", "lan0", "netns", each.namespace)
            run("ip", "link", "add", port, *ends)
            run("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
            each.ip("link", "set", "lo", "up")
            each.ip("link", "set", "lan0", "up")
        yield machines
    finally:
        for space in (*spaces, *routers):
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", space)
