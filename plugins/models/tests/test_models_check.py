"""``parallax models check``: what it says of a model, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session
from typer.testing import CliRunner

from parallax_core.api import ParallaxError
from parallax_models.check.cli import app
from tests.support.checkpoints import save_family
from tests.support.fakehub import FakeHub

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def run(model: object, *options: str) -> tuple[int, str]:
    """Return the exit code and the output of the command."""
    done = CliRunner().invoke(app, [str(model), *options], catch_exceptions=False)
    return done.exit_code, done.stdout


def read(model: object) -> tuple[int, dict[str, Any]]:
    code, text = run(model, "--json")
    return code, json.loads(text)


def change(folder: Path, **settings: object) -> None:
    """Change settings of config.json; None: remove them."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        close_session()


def test_family_is_supported_whole_and_in_stages(tmp_path: Path) -> None:
    save_family("glm4_moe", tmp_path)
    code, found = read(tmp_path)
    assert (code, found["supported"], found["family"], found["problem"]) == (0, True, "glm4_moe", "")
    assert found["plugin"] == "parallax-models"
    assert found["parameters"] > found["active_parameters"] > 0
    assert sum(found["kinds"].values()) == found["layers"]
    torch = next(each for each in found["backends"] if each["name"] == "torch")
    assert torch["whole"]
    assert torch["stages"]
    code, text = run(tmp_path)
    assert f"{tmp_path} is supported on this machine" in text


def test_engines_tell_by_what_is_recorded_of_them(tmp_path: Path) -> None:
    """They are not installed here, and a family that their stages cannot hold is refused by name all the same."""
    save_family("qwen3_next", tmp_path)
    told = {each["name"]: (each["whole"], each["stages"], each["reason"]) for each in read(tmp_path)[1]["backends"]}
    for name, whole, reason in (
        ("vllm", None, "Qwen3NextForCausalLM has recurrent states, which a stage on vLLM does not support"),
        ("sglang", False, "SGLang 0.5.23 does not run Qwen3NextForCausalLM on a CPU: its sgl_kernel lacks "),
    ):
        away = f"not on this machine: {name} is not installed: parallax engines install {name}"
        assert told[name][:2] == (whole, False)
        assert told[name][2].startswith(f"{away}; {reason}")
    change(tmp_path, architectures=["LlamaForCausalLM"], model_type="llama")
    told = {each["name"]: (each["whole"], each["stages"], each["reason"]) for each in read(tmp_path)[1]["backends"]}
    assert told["vllm"][:2] == (None, None)
    assert told["vllm"][2].endswith("; it has this family, and splits it, by what is recorded of it")


def test_config_alone_is_enough(tmp_path: Path) -> None:
    save_family("qwen3", tmp_path)
    for path in tmp_path.iterdir():
        if path.name != "config.json":
            path.unlink()
    code, found = read(tmp_path)
    assert code == 0
    assert {each["name"]: each["whole"] for each in found["backends"]}["torch"]


def test_adapter_that_counts_wrong_is_a_problem(tmp_path: Path) -> None:
    save_family("qwen3_moe", tmp_path)
    change(tmp_path, architectures=["LlamaForCausalLM"])
    code, found = read(tmp_path)
    assert (code, found["supported"]) == (1, False)
    assert "it counts no experts, and the layer has some" in found["problem"]
    assert "problem: the adapter 'llama' counts" in run(tmp_path)[1]


def test_architecture_nobody_knows_is_not_supported_and_says_what_to_do(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    change(tmp_path, architectures=["NobodyForCausalLM"], model_type="nobody")
    code, found = read(tmp_path)
    assert (code, found["supported"], found["family"]) == (1, False, "")
    assert "write-a-model-adapter.md" in found["hint"]
    reasons = {each["name"]: each["reason"] for each in found["backends"]}
    assert "transformers does not build this model" in reasons["torch"]
    assert all(each["hint"] for each in found["backends"] if each["whole"] is False)


def test_weights_in_a_form_that_a_backend_does_not_read_are_a_reason(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    change(tmp_path, quantization_config={"quant_method": "exl3", "bits": 4})
    found = read(tmp_path)[1]
    torch = next(each for each in found["backends"] if each["name"] == "torch")
    assert not torch["whole"]
    assert "exl3" in torch["reason"]
    assert "--backend vllm" in torch["hint"]


def test_missing_setting_is_named(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    change(tmp_path, num_attention_heads=None)
    code, found = read(tmp_path)
    assert code == 1
    assert found["problem"] == "config.json has no 'num_attention_heads', which a model of type llama needs"


def test_of_a_model_on_the_hub_only_headers_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    save_family("glm4_moe", tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    hub.add("tiny/glm", files | {"tokenizer.json": b"{}"})
    code, found = read("tiny/glm")
    assert (code, found["problem"], found["family"]) == (0, "", "glm4_moe")


def test_head_of_multi_token_prediction_is_left_aside(tmp_path: Path) -> None:
    save_family("deepseek_v3", tmp_path)
    number = json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]
    change(tmp_path, num_hidden_layers=number - 1, num_nextn_predict_layers=1, mlp_layer_types=None)
    code, found = read(tmp_path)
    [aside] = found["aside"]
    assert (code, aside["kind"]) == (0, "multi-token prediction")
    assert aside["bytes"] == 4 * aside["parameters"] > 0
    assert found["layers"] == number - 1
    assert f"left aside    {aside['tensors']} tensors for multi-token prediction" in run(tmp_path)[1]


def test_model_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError):
        run(tmp_path / "nothing")
