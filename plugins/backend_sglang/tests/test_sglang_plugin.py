"""What the distribution offers, what it refuses before SGLang starts, and what it passes to SGLang; needs no SGLang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_sglang import backend, probe, versions
from parallax_backend_sglang.arguments import Device, choose_device, choose_fraction, make_arguments, read_architecture
from parallax_backend_sglang.environment import STAND_INS, make_environment
from parallax_backend_sglang.plugin import parallax_register_backends, parallax_register_settings
from parallax_backend_sglang.settings import SglangSettings
from parallax_backend_sglang.spec import ENGINE
from parallax_core.api import EngineBackend, EnginePlan, ParallaxError, Unsupported

CPU = Device(is_cpu=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def test_plugin_offers_the_backend_and_its_section() -> None:
    [spec] = parallax_register_backends()
    [section] = parallax_register_settings()
    assert (spec.name, section.name, spec.opens) == ("sglang", "sglang", ("engine", "stage"))
    assert section.schema.load() is SglangSettings
    assert isinstance(spec.factory.load()(), EngineBackend)


def test_plugin_range_is_that_of_the_metadata() -> None:
    requires = metadata.requires("parallax-backend-sglang") or []
    [wanted] = {each.partition(";")[0].removeprefix("sglang").strip() for each in requires if each.startswith("sglang")}
    assert sorted(wanted.split(",")) == sorted(versions.describe_supported().split(","))


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20.post1", "0.5.23"])
def test_supported_release_is_taken(version: str) -> None:
    assert versions.explain_unsupported(version) == ""


@pytest.mark.parametrize("version", ["0.5.17", "0.5.24", "0.6.0", "1.0.0rc1", "of unknown version", ""])
def test_release_outside_the_range_is_refused_before_anything_starts(
    version: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend, probe):
        monkeypatch.setattr(module, "find_installed", lambda: version)
    with pytest.raises(Unsupported, match=version or "not installed") as caught:
        backend.SglangBackend().open_engine(EnginePlan(model=model))
    assert caught.value.hint == versions.REMEDY
    found = probe.probe_machine()
    assert not found.ok
    assert versions.REMEDY in found.reason


def test_environment_on_a_cpu_gets_sglang_without_packages_of_cuda() -> None:
    torch, bare, libraries = ENGINE.builds["cpu"]
    assert torch.install == ("torch==2.13.0+cpu",)
    assert "torch==2.13.0" in libraries.install
    assert libraries.as_required_by == "sglang"
    assert "--no-deps" in bare.options
    assert "sglang{release}" in bare.install
    everything = {re.split(r"[=<>{]", each)[0] for step in (libraries, bare) for each in step.install}
    assert not everything & {"torchvision", "torchaudio", "sgl-kernel", "sglang-kernel", "flashinfer-python"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"context_length": -1}, "context_length"),
        ({"max_total_tokens": -1}, "max_total_tokens"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"threads": -1}, "threads"),
        ({"mem_fraction_static": 1.0}, "mem_fraction_static"),
        ({"max_loras": -1}, "max_loras"),
    ],
)
def test_setting_out_of_range_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SglangSettings(**options)


@pytest.mark.parametrize(
    ("device", "settings", "named"),
    [
        ("", SglangSettings(tensor_parallel=2), "tensor_parallel"),
        ("cpu", SglangSettings(quantization="fp8"), "quantization"),
        ("cpu", SglangSettings(max_loras=2), "max_loras is 2, and SGLang's adapters need pinned memory"),
        ("cuda", SglangSettings(), "CUDA"),
        ("cuda:1", SglangSettings(), "CUDA"),
        ("mps", SglangSettings(), "mps"),
    ],
)
def test_combination_that_cannot_work_without_cuda_is_refused_by_name(
    device: str, settings: SglangSettings, named: str
) -> None:
    with pytest.raises(Unsupported, match=named) as caught:
        choose_device(device, settings, has_cuda=False)
    assert caught.value.hint


def test_device_on_a_machine_with_cuda_is_the_one_that_was_named() -> None:
    settings = SglangSettings(tensor_parallel=2)
    assert choose_device("", settings, has_cuda=True) == Device(is_cpu=False)
    assert choose_device("cuda:3", settings, has_cuda=True) == Device(is_cpu=False, index=3)
    assert choose_device("cpu", SglangSettings(), has_cuda=True) == CPU


def test_settings_reach_sglang(model: Path) -> None:
    settings = SglangSettings(
        context_length=512,
        max_total_tokens=1024,
        tensor_parallel=2,
        quantization="fp8",
        max_loras=2,
        prefix_caching="off",
        mem_fraction_static=0.7,
    )
    plan = EnginePlan(model=model, dtype="bfloat16", max_running=5, max_batch_tokens=256)
    found = make_arguments(plan, settings, Device(is_cpu=False, index=3))
    expected = {
        "model_path": str(model),
        "device": "cuda",
        "dtype": "bfloat16",
        "tp_size": 2,
        "base_gpu_id": 3,
        "context_length": 512,
        "max_total_tokens": 1024,
        "quantization": "fp8",
        "max_running_requests": 5,
        "chunked_prefill_size": 256,
        "enable_lora": True,
        "max_loras_per_batch": 2,
        "max_loaded_loras": 64,
        "max_lora_rank": 16,
        "lora_target_modules": ["all"],
        "disable_radix_cache": True,
        "mem_fraction_static": 0.7,
        "skip_tokenizer_init": True,
    }
    assert {name: found[name] for name in expected} == expected
    assert not {"attention_backend", "sampling_backend"} & set(found)


def test_arguments_on_a_cpu_need_no_kernels(model: Path) -> None:
    found = make_arguments(EnginePlan(model=model), SglangSettings(), CPU)
    assert found["attention_backend"] == "torch_native"
    assert (found["device"], found["sampling_backend"]) == ("cpu", "pytorch")


@pytest.mark.parametrize(
    ("stored", "dtype", "device", "expected"),
    [
        ("float16", "auto", CPU, "float32"),
        ("float16", "bfloat16", CPU, "bfloat16"),
        ("float16", "auto", Device(is_cpu=False), "auto"),
        ("bfloat16", "auto", CPU, "auto"),
    ],
)
def test_only_float16_on_a_cpu_is_computed_in_another_dtype(
    model: Path, stored: str, dtype: Any, device: Device, expected: str
) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "torch_dtype": stored}))
    found = make_arguments(EnginePlan(model=model, dtype=dtype), SglangSettings(), device)
    assert found["dtype"] == expected


@pytest.mark.parametrize(("dtype", "expected"), [("auto", 0.55), ("float32", 0.6)])
def test_share_of_the_memory_is_the_one_after_the_weights(model: Path, dtype: Any, expected: float) -> None:
    plan = EnginePlan(model=model, dtype=dtype, memory_fraction=0.5)
    assert choose_fraction(plan, 10_000) == pytest.approx(expected)


def test_weights_larger_than_the_memory_are_refused(model: Path) -> None:
    with pytest.raises(ParallaxError, match="are free") as caught:
        choose_fraction(EnginePlan(model=model), 900)
    assert "--dtype" in caught.value.hint


def test_architecture_is_the_first_one_in_the_configuration() -> None:
    assert read_architecture({"architectures": ["QwenForCausalLM"]}) == "QwenForCausalLM"
    assert read_architecture({"architectures": None}) == ""


def test_stand_ins_are_on_the_path_without_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    on_cpu = make_environment("/private", on_cpu=True, threads=3)
    assert on_cpu["PYTHONPATH"] == f"{STAND_INS}{os.pathsep}/elsewhere"
    assert on_cpu["SGLANG_USE_CPU_ENGINE"] == "1"
    on_cuda = make_environment("/private", on_cpu=False, threads=3)
    assert on_cuda["PYTHONPATH"] == "/elsewhere"
    assert "SGLANG_USE_CPU_ENGINE" not in on_cuda


@pytest.mark.parametrize("on_cpu", [True, False])
def test_child_process_has_no_keys(monkeypatch: pytest.MonkeyPatch, *, on_cpu: bool) -> None:
    for name in ("PARALLAX_API_KEY", "HF_TOKEN", "SGLANG_API_KEY", "CUDA_VISIBLE_DEVICES", "SGLANG_LOG_MS"):
        monkeypatch.setenv(name, "x")
    found = make_environment("/private", on_cpu=on_cpu, threads=3)
    assert {"CUDA_VISIBLE_DEVICES", "SGLANG_LOG_MS", "PATH"} <= set(found)
    assert found.keys().isdisjoint({"PARALLAX_API_KEY", "HF_TOKEN", "SGLANG_API_KEY"})


STAND_IN_CHECK = """
import importlib.util
assert importlib.util.find_spec("sgl_kernel") is None
import sgl_kernel
from sgl_kernel.deep.inside import Kind, function
assert sgl_kernel.__version__ == "0.0.0"
class Mine(Kind): pass
assert Mine() and Kind.SOME_MEMBER is not None
from torchvision import transforms
try:
    function(1)
except NotImplementedError as error:
    print(error)
try:
    transforms.functional.resize()
except NotImplementedError as error:
    print(error)
try:
    import no_such_package
except ModuleNotFoundError:
    print("gone")
"""


def test_stand_ins_can_be_imported_and_do_not_compute() -> None:
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS)}
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN_CHECK], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        "sgl_kernel.deep.inside.function has no CPU build",
        "torchvision.transforms.functional.resize has no CPU build",
        "gone",
    ], done.stderr
