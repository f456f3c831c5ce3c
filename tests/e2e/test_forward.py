"""Clients of machines that have joined: they use the server's API at an address of their own machine."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import Server, run_command
from tests.e2e.test_run import coordinating, homes, join_with, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until

__all__ = ("homes",)

FORWARD_S = 2.0
"""Seconds after which a machine that has joined answers at its own address."""


def find_api(log: Path) -> str:
    """Return the URL at which a machine that joins serves its own clients."""
    wait_until(lambda: "\nAPI " in log.read_text())
    found = re.search(r"^API (\S+)$", log.read_text(), re.MULTILINE)
    assert found
    return found[1]


def read_refusal(url: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the error of a request that fails."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/models", timeout=30)
    with refused.value as response:
        return response.code, json.load(response)["error"]


def follow_hint(homes: dict[str, Path], log: Path) -> None:
    """Have a machine that has joined manage models, by the command that its refusal names, and then no longer."""
    refused = run_command(homes["one"], "models", "forget", "stranger").stderr
    found = re.search(r"`parallax (keys allow \S+ \S+ --role) any` on the server's machine", refused)
    assert found, refused
    for role, answer in (("any", "the model 'stranger' does not exist"), ("worker", found[0])):
        begun = log.read_text().count("joined head=head")
        assert run_command(homes["first"], *found[1].split(), role).returncode == 0
        wait_until(lambda: log.read_text().count("joined head=head") > begun)  # noqa: B023 -- called within
        assert answer in run_command(homes["one"], "models", "forget", "stranger").stderr


def test_machine_that_has_joined_answers_at_its_own_address(
    homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    log, one = tmp_path / "log", tmp_path / "one.log"
    with ExitStack() as stack:
        process, code = stack.enter_context(coordinating(homes["first"], log, "--nodes", "2", model=split))
        stack.enter_context(started(homes["one"], one, *join_with(split, "--port", "0", code)))
        wait_until(lambda: "joined head=head" in one.read_text())
        begun, url = time.monotonic(), find_api(one)
        assert Client(url).model() == split.name
        assert time.monotonic() - begun < FORWARD_S
        assert "stage" not in one.read_text(), "no layer is loaded yet"

        server = read_ready(process, log)
        here, there = server, Server(process, url, log)
        assert read_stream(there, 0, lambda: None) == read_stream(here, 0, lambda: None)
        chat = run_command(homes["one"], "chat", "--max-tokens", "4", "--temperature", "0", "Hello")
        assert (chat.returncode, chat.stderr) == (0, "")
        assert chat.stdout.strip()
        assert split.name in run_command(homes["one"], "models", "served").stdout
        nodes = run_command(homes["one"], "nodes").stdout
        assert "local/0" in nodes
        assert "to join" not in nodes, "the code is a secret of the first machine"
        follow_hint(homes, tmp_path / "one.log")

        process.send_signal(signal.SIGKILL)
        process.wait()
        status, error = read_refusal(url)
        assert (status, error["type"], error["code"]) == (503, "service_unavailable_error", "coordinator_unavailable")
        assert "this machine has joined the server at tcp://127.0.0.1:" in error["message"]
