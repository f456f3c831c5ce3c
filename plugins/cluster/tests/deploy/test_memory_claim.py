from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.deploy.cluster_services import make_profile
from parallax_cluster.deploy.memory_claim import LEFT_OVER, MemoryClaim, claim_file
from parallax_core.config.worker import WorkerSettings
from parallax_core.deploy.node_services import WorkerContext, open_transport
from parallax_core.deploy.stage_opener import StageOpener
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.plugins.host import PluginHost
from parallax_core.wire.membership import Join


def test_second_worker_of_a_home_gets_the_memory_once_the_first_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "workers" / "memory"
    first, second = MemoryClaim(None, path), MemoryClaim(None, path)
    assert first.find_limit() is None
    assert [second.find_limit() for _ in range(3)] == [LEFT_OVER] * 3
    assert caplog.text.count("another worker has the memory of this machine") == 1
    assert "--memory GB" in caplog.text
    assert first.find_limit() is None
    first.close()
    assert second.find_limit() is None
    assert first.find_limit() == LEFT_OVER
    second.close()
    second.close()


def test_workers_that_are_given_their_shares_run_beside_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (MemoryClaim(given, tmp_path / "memory") for given in (4, 5, None))
    assert [first.find_limit(), second.find_limit()] == [4, 5]
    assert not caplog.records
    assert third.find_limit() == LEFT_OVER
    first.close()
    assert third.find_limit() == LEFT_OVER
    second.close()
    assert third.find_limit() is None
    assert first.find_limit() == 4
    assert "another worker counts on all the memory" in caplog.text
    third.close()


def test_memory_of_a_machine_is_its_own_and_that_of_each_choice_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    choices: tuple[dict[str, str], ...] = (
        {},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"HIP_VISIBLE_DEVICES": "0"},
    )
    files = {claim_file(each) for each in choices}
    assert len(files) == len(choices)
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    assert claim_file({}) not in files


def test_home_that_cannot_be_written_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert MemoryClaim(None, tmp_path / "file" / "memory").find_limit() is None


def open_profile(*, as_joined: bool) -> StageOpener:
    """Make the service that reports what a machine has, and return the opener of its stages."""
    settings = WorkerSettings(connect="inprocess://head", transport="inprocess", as_joined=as_joined)
    plugins = PluginHost.discover()
    opener = StageOpener(plugins, [])
    services = NodeServices(open_transport(settings, plugins, "a", {}, "inprocess://a"))
    layers, place = SharedLayers(opener.open_stage, None), HeadPlace(settings.connect, "head", "a")
    context = WorkerContext(
        "a", services, settings, plugins, None, opener, {}, layers, place, lambda: Join("", (), "", 0)
    )
    make_profile(context)
    return opener


def test_only_machines_that_join_claim_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    first = open_profile(as_joined=True)
    assert first.find_limit() is None
    assert open_profile(as_joined=False).find_limit() is None
    assert open_profile(as_joined=True).find_limit() == LEFT_OVER
