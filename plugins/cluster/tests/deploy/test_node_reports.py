from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.deploy.node_reports import ReportMaker, make_reporter
from parallax_cluster.node.profile import device
from parallax_cluster.node.profile.device import measure_machine
from parallax_cluster.node.profile.link_prober import LinkProber
from parallax_cluster.node.profile.measuring import MeasuringProcess
from parallax_core.api import BackendSpec, Ref, TransportPlan, hookimpl
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.device import DevicePlan
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from plugins.cluster.tests.node.profile.test_device import CountingBenchmark

BENCHMARK: Ref[Any] = Ref("plugins.cluster.tests.node.profile.test_device:CountingBenchmark")
SPEC = BackendSpec(
    name="beads", summary="s", probe=Ref("no:thing"), factory=Ref("builtins:object"), benchmark=BENCHMARK
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    monkeypatch.setattr(device, "find_gpus", list)


def make_host(spec: BackendSpec) -> PluginHost:
    plugin = types.SimpleNamespace(parallax_register_backends=hookimpl(lambda: [spec]))
    record = PluginRecord(name="p", distribution="p", version="1", module="p", state="loaded")
    return PluginHost([(record, plugin)])


def make_maker(spec: BackendSpec = SPEC, settings: WorkerSettings | None = None) -> tuple[ReportMaker, PluginHost]:
    host = make_host(spec)
    return ReportMaker(settings or WorkerSettings(), host, host.backends().get(spec.name)), host


def test_report_has_what_was_measured_before() -> None:
    make, host = make_maker()
    assert make() is None, "it measures nothing itself"
    measure_machine(host, host.backends().get("beads"), DevicePlan())
    report = make()
    assert report is not None
    assert (report.backend, report.device.name, report.device.is_measured) == ("beads", CountingBenchmark.name, True)


def test_first_report_follows_the_import_of_the_backend() -> None:
    spec = dataclasses.replace(SPEC, factory=Ref("tests.unit.deploy.slow_backend:factory"))
    host = make_host(spec)
    measuring = MeasuringProcess([])
    measuring.machine = measure_machine(host, host.backends().get("beads"), DevicePlan())
    make = ReportMaker(WorkerSettings(), host, host.backends().get("beads"), measuring)
    sys.modules.pop("tests.unit.deploy.slow_backend", None)
    assert make() is not None
    assert "tests.unit.deploy.slow_backend" in sys.modules


@pytest.mark.parametrize("leases", [False, True])
def test_report_says_whether_the_backend_has_leases(*, leases: bool) -> None:
    make, host = make_maker(dataclasses.replace(SPEC, leases=leases))
    measure_machine(host, host.backends().get("beads"), DevicePlan())
    report = make()
    assert report is not None
    assert report.leases == leases


@pytest.mark.parametrize("limit", [None, 4096])
def test_context_that_a_user_allows_is_reported(limit: int | None) -> None:
    make, host = make_maker(settings=WorkerSettings(max_context=limit))
    measure_machine(host, host.backends().get("beads"), DevicePlan())
    report = make()
    assert report is not None
    assert report.max_context == (limit or 0)


def test_memory_that_a_user_grants_is_reported() -> None:
    make, host = make_maker(settings=WorkerSettings(memory=0.1))
    measure_machine(host, host.backends().get("beads"), DevicePlan())
    report = make()
    assert report is not None
    assert report.device.memory == 10**8


@pytest.mark.parametrize("is_supervised", [False, True])
def test_device_without_figures_is_said_once_by_nodes_that_users_start(
    caplog: pytest.LogCaptureFixture, *, is_supervised: bool
) -> None:
    spec = BackendSpec(name="dark", summary="s", probe=Ref("no:thing"), factory=Ref("builtins:object"))
    make, _ = make_maker(spec, WorkerSettings(supervised=is_supervised))
    assert [make(), make()] == [None, None]
    assert caplog.text.count("this node cannot say how fast it is") == (0 if is_supervised else 1)


def test_node_without_a_backend_reports_nothing() -> None:
    reporter = make_reporter(
        WorkerSettings(), None, make_host(SPEC), [], LinkProber(InProcessTransport(TransportPlan(node="n")), "n")
    )
    assert reporter._make() is None
