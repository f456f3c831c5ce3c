"""``parallax doctor`` in JSON, and what it used to say of networks."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_core.base.errors import UsageError
from parallax_core.plugins.discovery import DISABLED_VARIABLE
from parallax_manage.doctor import app


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))


def test_findings_are_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLED_VARIABLE, "mlx,torch,sglang,vllm")  # which take seconds to import
    found = json.loads(CliRunner().invoke(app, ["--json"]).output)["findings"]
    assert {"topic", "status", "message", "remedy"} == set(found[0])
    assert any(each["topic"] == "machine" for each in found)


def test_network_is_a_command_now() -> None:
    asked = CliRunner().invoke(app, ["--network", "--json"])
    assert asked.stderr == "hint: `parallax doctor --network` is now `parallax network`\n"
    assert json.loads(asked.stdout)["network"]["kind"] == "unknown"
    with socket.socket(type=socket.SOCK_DGRAM) as silent:  # bound, so that nobody else answers there
        silent.bind(("127.0.0.1", 0))
        named = CliRunner().invoke(app, ["--network", "--ask", f"127.0.0.1:{silent.getsockname()[1]}"])
    assert named.exit_code == 1, named.output
    assert "no server was reached" in named.stdout


def test_network_names_the_distribution_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.cli.load_command", lambda _: None)
    error = CliRunner().invoke(app, ["--network"]).exception
    assert isinstance(error, UsageError)
    assert error.hint == "pip install parallax-netcheck"
