"""What the distribution offers, and what the doctor says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from parallax_backend_mlx import diagnose, plugin, probe
from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import PLUGIN_API

LIGHT = """
import sys, time
from parallax_backend_mlx.plugin import parallax_register_backends
(spec,) = parallax_register_backends()
assert not {"mlx", "mlx_lm", "numpy", "ctypes"} & set(sys.modules), sorted(sys.modules)
start = time.perf_counter()
availability = spec.probe.load()()
assert "mlx.core" not in sys.modules and "mlx_lm" not in sys.modules
print(availability.ok, availability.device, time.perf_counter() - start)
"""


def test_plugin_and_probe_import_nothing_heavy_and_are_quick() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60, check=True).stdout
        for _ in range(3)
    ]
    assert {run.split()[0] for run in runs} == {"True"}
    assert min(float(run.split()[2]) for run in runs) < 0.2


def test_specs_name_things_that_are_there() -> None:
    (spec,) = plugin.parallax_register_backends()
    assert spec.name == "mlx"
    assert spec.factory.load() is MlxBackend
    assert spec.probe.load() is probe.probe_machine


def test_entry_points_name_the_plugin() -> None:
    points = {
        (point.group, point.name, point.value) for point in metadata.entry_points(module="parallax_backend_mlx.plugin")
    }
    assert points == {
        ("parallax", "mlx", "parallax_backend_mlx.plugin"),
        ("parallax.api", str(PLUGIN_API), "parallax_backend_mlx.plugin"),
    }


@pytest.mark.parametrize(
    ("distribution", "others", "is_advised"),
    [("mlx-cpu", [], True), ("mlx-cpu", ["parallax_backend_torch"], False), ("mlx-metal", [], False)],
)
def test_probe_advises_the_faster_backend_where_only_mlx_is_on_a_cpu(
    distribution: str, others: list[str], is_advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_is_installed", lambda name: name == distribution)
    monkeypatch.setattr(probe, "find_spec", lambda name: name in {"mlx", "mlx_lm", *others} or None)
    found = probe.probe_machine()
    assert found.ok
    assert ("pip install parallax-backend-torch" in found.advice) == is_advised


@pytest.mark.parametrize(
    ("system", "machine", "words"), [("win32", "AMD64", "not on win32"), ("darwin", "x86_64", "Apple silicon")]
)
def test_probe_says_why_not(system: str, machine: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = probe.probe_machine()
    assert not found.ok
    assert words in found.reason


def test_probe_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "DEVICES", {"no-such-distribution": "cpu"})
    assert "mlx[cpu]" in probe.probe_machine().reason
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    assert "pip install mlx" in probe.probe_machine().reason


def test_doctor_reports_versions_and_the_blas_by_evidence() -> None:
    findings = {finding.topic: finding for finding in plugin.parallax_diagnose()}
    assert metadata.version("mlx-lm") in findings["mlx-lm"].message
    assert metadata.version("mlx") in findings["mlx"].message
    if sys.platform == "linux":
        assert "GFLOP/s" in findings["mlx BLAS"].message


REPORT = """
import json, sys
from parallax_backend_mlx.diagnose import list_findings
from parallax_backend_mlx.settings import PROCESS
PROCESS.blas = sys.argv[1]
print(json.dumps([[finding.topic, finding.status, finding.message, finding.remedy] for finding in list_findings()]))
"""


@pytest.mark.parametrize(("blas", "status", "words"), [("auto", "ok", "OpenBLAS"), ("off", "warning", "libblas")])
def test_doctor_tells_the_blas_in_use(blas: str, status: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-c", REPORT, blas], capture_output=True, text=True, timeout=60, check=True)
    findings = {topic: rest for topic, *rest in json.loads(done.stdout)}
    found_status, message, remedy = findings["mlx BLAS"]
    assert (found_status, bool(remedy)) == (status, status == "warning")
    assert words in message


def test_doctor_reports_an_mlx_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "parallax_backend_mlx.runtime", None)
    findings = {finding.topic: finding for finding in diagnose.list_findings()}
    assert findings["mlx"].status == "error"
    assert findings["mlx"].remedy
