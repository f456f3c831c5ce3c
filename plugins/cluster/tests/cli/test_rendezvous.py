from __future__ import annotations

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli import rendezvous as module
from parallax_core.base.offline import HUB_VARIABLE, OFFLINE_VARIABLE, is_offline


def test_rendezvous_that_is_offline_answers_no_broadcasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in (OFFLINE_VARIABLE, HUB_VARIABLE):  # set first, so that both are restored
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path_factory.mktemp("home")))
    was_offline: list[bool] = []

    async def host_rendezvous(*_: object) -> None:
        was_offline.append(is_offline())

    monkeypatch.setattr(module, "host_rendezvous", host_rendezvous)
    found = CliRunner().invoke(module.app, ["--offline"])
    assert found.exit_code == 0, found.output
    assert "network: offline" in found.stderr
    assert was_offline == [True]
