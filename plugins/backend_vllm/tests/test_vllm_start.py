"""What happens before vLLM starts, and what a user is told if it does not."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_backend_vllm import environ, logs
from parallax_backend_vllm.checks import check_device, find_kv_bytes, measure_weights
from parallax_backend_vllm.errors import explain_start
from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import EnginePlan, Machine, ParallaxError, Unsupported

GIB = 2**30
SHOW = "import os; print(*os.environ)"


@pytest.fixture
def plan(tmp_path: Path) -> EnginePlan:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return EnginePlan(model=tmp_path, dtype="float32", memory_fraction=0.5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tensor_parallel", VllmSettings(tensor_parallel=2)),
        ("pipeline_parallel", VllmSettings(pipeline_parallel=2)),
    ],
)
def test_several_devices_are_refused_on_a_cpu_by_the_name_of_the_option(
    plan: EnginePlan, name: str, settings: VllmSettings
) -> None:
    with pytest.raises(Unsupported, match=f"the option {name} is 2, and on a CPU"):
        check_device(plan, settings, is_cpu=True)
    check_device(plan, settings, is_cpu=False)


@pytest.mark.parametrize(("device", "is_cpu"), [("cuda:1", True), ("cpu", False), ("metal", False)])
def test_device_of_another_build_is_refused(tmp_path: Path, device: str, is_cpu: bool) -> None:
    with pytest.raises(Unsupported, match=f"--device {device} cannot be used"):
        check_device(EnginePlan(model=tmp_path, device=device), VllmSettings(), is_cpu=is_cpu)


def test_weights_that_are_widened_count_twice(plan: EnginePlan) -> None:
    assert measure_weights(plan) == 2000


def test_kv_cache_is_a_share_of_the_memory_that_the_weights_leave(
    plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "free_memory", lambda _: 5 * GIB)
    assert find_kv_bytes(plan, VllmSettings()) == (4 * GIB - 2000) // 2
    assert find_kv_bytes(plan, VllmSettings(kv_cache_gb=1.5)) == 1_500_000_000


@pytest.mark.parametrize(("free", "wanted"), [(GIB, 0.0), (3 * GIB, 4.0)])
def test_too_little_memory_is_refused_before_the_start(
    plan: EnginePlan, monkeypatch: pytest.MonkeyPatch, free: int, wanted: float
) -> None:
    monkeypatch.setattr(Machine, "free_memory", lambda _: free)
    with pytest.raises(ParallaxError, match="are free") as refused:
        find_kv_bytes(plan, VllmSettings(kv_cache_gb=wanted))
    assert "kv_cache_gb" in refused.value.hint


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("To serve at least one request with the model's max seq len (9), (9 GiB KV cache is needed", "max_model_len"),
        ("No available memory for the cache blocks. Try", "kv_cache_gb"),
        ("Model architectures ['A'] are not supported for now.", "--backend"),
        ("anything else", "its log"),
    ],
)
def test_error_of_the_start_names_the_option_to_change(
    message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallax_backend_vllm.errors.find_error", lambda: "")
    found = explain_start(RuntimeError(message))
    assert found.message == f"vLLM cannot serve this model: {message}"
    assert hint in found.hint


def test_error_of_pydantic_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_backend_vllm.errors.find_error", lambda: "")
    text = (
        "1 validation error for ModelConfig\n  Value error, max_model_len (9) is greater [type=value_error, input=9]\n"
    )
    assert explain_start(ValueError(text)).message == "vLLM cannot serve this model: max_model_len (9) is greater"


def test_error_in_a_process_of_vllm_is_the_one_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VARIABLE, str(tmp_path / "logging.json"))
    logging.config.dictConfig(logs.make_config(tmp_path / logs.ERRORS))
    error = ValueError("No available memory for the cache blocks.")
    logging.getLogger("vllm.core").error("EngineCore failed\nto start.", exc_info=error)
    for handler in logging.getLogger("vllm").handlers:
        handler.close()
    logging.getLogger("vllm").handlers.clear()
    assert "EngineCore failed to start. (ValueError: No available memory" in capsys.readouterr().err
    found = explain_start(RuntimeError("Engine core initialization failed. See root cause above."))
    assert found.message.endswith("No available memory for the cache blocks.")
    assert "kv_cache_gb" in found.hint


def test_logging_that_a_user_configured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "mine.json")
    logs.configure_logs()
    assert os.environ[logs.VARIABLE] == "mine.json"


def test_openmp_is_preloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / environ.OPENMP
    library.parent.mkdir()
    library.touch()
    assert environ.find_openmp([tmp_path / "lib/python3.11/site-packages"]) == library
    assert environ.find_openmp([]) is None
    assert environ.add_preload("a.so", "b.so") == "a.so:b.so"
    assert environ.add_preload("a.so:b.so", "b.so") == "a.so:b.so"


def test_threads_are_those_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "KMP_BLOCKTIME", "LD_PRELOAD"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(Machine, "count_cores", lambda _: 8)
    environ.set_cpu_environ(VllmSettings(threads=3))
    assert os.environ["OMP_NUM_THREADS"] == "3"
    environ.set_cpu_environ(VllmSettings())
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("device", "shown"), [("cuda:1", "1"), ("cuda", None), ("", None)])
def test_gpu_of_the_plan_is_the_only_one_shown(device: str, shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environ.choose_gpu(device)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == shown
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_processes_of_vllm_have_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARALLAX_API_KEY", "HF_TOKEN", "VLLM_API_KEY", "CUDA_VISIBLE_DEVICES", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "x")
    before = dict(os.environ)
    with environ.limit_environ():
        os.environ["VLLM_SET_MEANWHILE"] = "1"
        shown = subprocess.run([sys.executable, "-S", "-c", SHOW], capture_output=True, text=True, check=True).stdout
    found = set(shown.split())
    assert {"CUDA_VISIBLE_DEVICES", "VLLM_LOGGING_LEVEL", "VLLM_SET_MEANWHILE", "PATH"} <= found
    assert found.isdisjoint({"PARALLAX_API_KEY", "HF_TOKEN", "VLLM_API_KEY"})
    assert os.environ.pop("VLLM_SET_MEANWHILE") == "1"
    assert dict(os.environ) == before


def test_vllm_reports_and_fetches_nothing_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HF_HUB_OFFLINE": "0"}
    monkeypatch.setattr(os, "environ", variables)
    environ.set_environ()
    names = ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE")
    assert [variables[name] for name in names] == ["1", "1", "1", "0"]
