"""``parallax network``, against servers of this machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_cluster.node.network.responder import answering
from parallax_netcheck.cli import app
from tests.support.ports import HOST, find_ports


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_text_says_what_the_network_is_and_whom_was_asked() -> None:
    port = find_ports()
    with answering(HOST, port):
        ran = CliRunner().invoke(app, ["--ask", f"{HOST}:{port}"])
    assert ran.exit_code == 0
    assert f"network: open: others reach this machine at its own address, seen at {HOST}\n" in ran.output
    assert f"asked: {HOST}:{port}\n" in ran.output
    assert "works: It can be the server" in ran.output


def test_json_has_the_same() -> None:
    port = find_ports()
    with answering(HOST, port):
        ran = CliRunner().invoke(app, ["--json", "--ask", f"{HOST}:{port}"])
    found = json.loads(ran.output)["network"]
    assert (found["kind"], found["address"], found["asked"]) == ("open", HOST, [f"{HOST}:{port}"])


def test_without_a_server_it_says_what_it_cannot_know() -> None:
    ran = CliRunner().invoke(app, [])
    assert ran.exit_code == 0
    assert "asked: no server, since this machine has joined none" in ran.output
    assert "cannot be known from here" in ran.output
    assert "to do: Name servers" in ran.output


def test_exit_status_tells_that_no_server_is_reached() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:  # bound, so that nobody else answers there
        silent.bind((HOST, 0))
        ran = CliRunner().invoke(app, ["--ask", f"{HOST}:{silent.getsockname()[1]}"])
    assert ran.exit_code == 1, ran.output
    assert "no server was reached" in ran.output
