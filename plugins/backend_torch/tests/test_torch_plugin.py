"""What the distribution offers, what it says of the machine, and what it takes of it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_torch import architectures, probe
from parallax_backend_torch.devices import choose_factory, describe_device
from parallax_backend_torch.diagnose import list_findings
from parallax_backend_torch.kernels.library import Mode, choose_kernels
from parallax_backend_torch.plugin import (
    parallax_register_backends,
    parallax_register_settings,
    parallax_select_backend,
)
from parallax_backend_torch.probe import probe_machine
from parallax_backend_torch.settings import TorchSettings
from parallax_core.api import Availability, Machine, StagePlan
from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.plugins.host import PluginHost


def test_plugin_offers_the_backend_and_its_section() -> None:
    [spec] = parallax_register_backends()
    [section] = parallax_register_settings()
    assert (spec.name, section.name) == ("torch", "torch")
    assert section.schema.load() is TorchSettings


LLAMA, STRANGER = {"architectures": ["LlamaForCausalLM"]}, {"architectures": ["StrangerForCausalLM"]}
PACKED = {"quantization_config": {"quant_method": "exl3"}}
"""In a form that this backend does not read."""


def test_plugin_takes_what_only_it_reads() -> None:
    kept = {**LLAMA, "quantization_config": {"quant_method": "gguf"}}
    assert parallax_select_backend(kept, ["mlx", "torch"], ["torch"]) == "torch"
    assert parallax_select_backend(kept, ["mlx"], []) is None


def test_plugin_leaves_what_it_has_blocks_for_to_the_ranks() -> None:
    assert parallax_select_backend(LLAMA, ["torch", "mlx"], ["torch"]) is None
    mxfp4 = {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    assert parallax_select_backend(mxfp4, ["torch", "mlx"], ["torch"]) is None
    packed = {**LLAMA, "quantization": {"group_size": 64, "bits": 4}}
    assert parallax_select_backend(packed, ["torch", "mlx"], ["torch"]) is None


@pytest.mark.parametrize("config", [STRANGER, {}, {**LLAMA, **PACKED}])
def test_plugin_leaves_what_it_has_no_blocks_for_to_others_if_there_are_any(config: dict[str, Any]) -> None:
    blocks = ["torch"] if config is not STRANGER and config else []
    assert parallax_select_backend(config, ["torch", "mlx"], blocks) == "mlx"
    assert parallax_select_backend(config, ["torch"], blocks) is None


def test_plugin_keeps_what_transformers_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "probe_machine", lambda: Availability(ok=True, device="CUDA"))
    assert parallax_select_backend(STRANGER, ["torch", "mlx"], []) is None
    assert parallax_select_backend({**LLAMA, **PACKED}, ["torch", "mlx"], ["torch"]) == "mlx"
    monkeypatch.setattr(architectures, "find_spec", lambda _: None)
    assert parallax_select_backend(STRANGER, ["torch", "mlx"], []) == "mlx"


CHOICE = """
import sys
from parallax_backend_torch.plugin import parallax_select_backend
parallax_select_backend({"architectures": ["StrangerForCausalLM"]}, ["torch", "mlx"], [])
sys.exit("torch" in sys.modules)
"""


def test_backend_is_chosen_without_importing_torch() -> None:
    subprocess.run([sys.executable, "-c", CHOICE], check=True, timeout=60)


def test_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert probe_machine(Machine(nvidia_driver=tmp_path / "no driver")).device == "cpu"
    monkeypatch.setattr(probe, "find_spec", lambda _: None)
    found = probe_machine()
    assert not found.ok
    assert "pip install torch" in found.reason


def test_probe_sees_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM")
    monkeypatch.setattr(metadata, "version", lambda _: "2.13.0")
    assert probe_machine(Machine(nvidia_driver=tmp_path / "version")).device == "CUDA"


def test_options_of_the_environment_reach_the_plan_and_not_the_backend_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_TORCH__WEIGHTS", "int8")
    monkeypatch.setenv("PARALLAX_TORCH__THREADS", "3")
    host = PluginHost.prepare()
    options = host.read_options(host.backends().get("torch"))
    assert TorchSettings(**options) == TorchSettings(weights="int8", threads=3)  # type: ignore[arg-type]
    assert TorchSettings(**StagePlan(model=Path()).options) == TorchSettings()


@pytest.mark.parametrize(
    ("variable", "value"), [("WEIGHTS", "int3"), ("THREADS", "-1"), ("KERNELS", "fast"), ("GRAPHS", "on")]
)
def test_option_that_is_invalid_is_refused_by_its_name(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PARALLAX_TORCH__{variable}", value)
    with pytest.raises(UsageError) as caught:
        Config.load().read("torch", TorchSettings)
    assert f"PARALLAX_TORCH__{variable}" in f"{caught.value.message} {caught.value.hint}"


def test_findings_speak_of_versions_kernels_and_models() -> None:
    topics = {finding.topic: finding.status for finding in list_findings(TorchSettings())}
    assert topics.keys() == {"torch", "torch kernels", "torch models"}
    assert topics["torch"] == "ok"


@pytest.mark.parametrize(("mode", "said"), [("off", "torch: turned off"), ("plain", "compiled, plain, 1 threads")])
def test_kernels_are_used_as_the_user_says(mode: Mode, said: str) -> None:
    settings = TorchSettings(kernels=mode)
    try:
        factory = choose_factory(StagePlan(model=Path(), device="cpu"), settings, [])
        assert said in describe_device(factory)
        [finding] = (each for each in list_findings(settings) if each.topic == "torch kernels")
        assert finding.status == "ok"
        assert finding.message.startswith(said.rpartition(",")[0])
    finally:
        choose_kernels("auto")
