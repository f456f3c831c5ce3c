"""What a checkpoint of several kinds of weights takes, by its headers, its index, or config.json alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from parallax_cluster.cli.model_list import SHIPPED
from parallax_cluster.deploy.weight_size import fetch_headers, measure_stored, read_model
from parallax_cluster.placement.demand import measure_demand
from parallax_core.api import ModelDemand, silent
from parallax_core.api.deployment import Catalog, PluginHost
from parallax_core.api.source import INDEX
from tests.support.fakehub import FakeHub

BYTES = {"BF16": 2, "U8": 1, "F32": 4}
MODELS = {each["name"]: each["config"] for each in json.loads(SHIPPED.read_text(encoding="utf-8"))["models"]}
GPT_OSS = MODELS["gpt-oss-120b"] | {"quantization_config": {"quant_method": "mxfp4"}}
LLAMA = MODELS["Llama-3.1-70B"]
DEEPSEEK = MODELS["DeepSeek-V3"]
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        close_session()


def list_tensors(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtypes and shapes of the tensors of gpt-oss, by their names."""
    hidden, inner, experts, head = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts", "head_dim")
    )
    heads, shared = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (config["vocab_size"], hidden)),
        "lm_head.weight": ("BF16", (config["vocab_size"], hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, outer in (("q", heads), ("k", shared), ("v", shared)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = "BF16", (outer, hidden)
            found[f"{layer}.self_attn.{name}_proj.bias"] = "BF16", (outer,)
        found[f"{layer}.self_attn.o_proj.weight"] = "BF16", (hidden, heads)
        found[f"{layer}.self_attn.o_proj.bias"] = "BF16", (hidden,)
        found[f"{layer}.self_attn.sinks"] = "BF16", (config["num_attention_heads"],)
        found[f"{layer}.input_layernorm.weight"] = "BF16", (hidden,)
        found[f"{layer}.post_attention_layernorm.weight"] = "BF16", (hidden,)
        found[f"{layer}.mlp.router.weight"] = "BF16", (experts, hidden)
        found[f"{layer}.mlp.router.bias"] = "BF16", (experts,)
        for name, outer, width in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
            found[f"{layer}.mlp.experts.{name}_proj_blocks"] = "U8", (experts, outer, width // 32, 16)
            found[f"{layer}.mlp.experts.{name}_proj_scales"] = "U8", (experts, outer, width // 32)
            found[f"{layer}.mlp.experts.{name}_proj_bias"] = "BF16", (experts, outer)
    return found


def write_headers(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> int:
    """Write a file that has the header of tensors, and a hole in place of them; return their bytes."""
    header, at = {}, 0
    for name, (kind, shape) in tensors.items():
        size = math.prod(shape) * BYTES[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return at


def count_token(demand: ModelDemand) -> float:
    """Return the bytes that one token reads."""
    return sum(
        layer.read + (layer.experts * layer.num_active_experts / layer.num_experts if layer.num_experts else 0)
        for layer in demand.layers
    )


def measure(folder: Path, config: dict[str, Any]) -> ModelDemand:
    (folder / "config.json").write_text(json.dumps(config))
    known = read_model(PluginHost.prepare(), str(folder), silent)
    return measure_demand(known.shape, size=measure_stored(known))


def sum_weights(demand: ModelDemand) -> int:
    return sum(layer.weights for layer in demand.layers) - demand.shared


def test_headers_tell_experts_from_other_weights(tmp_path: Path) -> None:
    total = write_headers(tmp_path / "model.safetensors", list_tensors(GPT_OSS))
    demand = measure(tmp_path, GPT_OSS)
    assert sum_weights(demand) == total == pytest.approx(65.25e9, rel=0.002)  # as published
    assert count_token(demand) == pytest.approx(5.0e9, rel=0.01)


def test_config_alone_tells_experts_from_other_weights(tmp_path: Path) -> None:
    demand = measure(tmp_path, GPT_OSS)
    assert sum_weights(demand) == pytest.approx(65.25e9, rel=0.005)
    assert count_token(demand) == pytest.approx(5.0e9, rel=0.01)


def test_ends_of_packed_models_are_plain(tmp_path: Path) -> None:
    demand = measure(tmp_path, LLAMA | {"quantization_config": AWQ})
    size = 128256 * 8192 * 2
    assert demand.layers[0].weights - demand.layers[1].weights == pytest.approx(size, rel=0.001)
    assert demand.layers[1].weights == pytest.approx(855_638_016 * (4 + 20 / 128) / 8, rel=0.001)


@pytest.mark.parametrize(
    ("quantization", "total"),
    [
        pytest.param(FP8, 671.9e9, id="fp8"),
        pytest.param({"group_size": 64, "bits": 4}, 671.0e9 * 4.5 / 8, id="mlx"),
        pytest.param(
            {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 8}}}},
            672.0e9,
            id="w8",
        ),
        pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, 671.0e9 * 4.5 / 8 + 2.85e9, id="nf4"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 671.0e9 * 4.5 / 8 + 2.85e9, id="nvfp4"),
    ],
)
def test_formats_count_as_what_they_are(quantization: dict[str, Any], total: float, tmp_path: Path) -> None:
    config = {key: value for key, value in DEEPSEEK.items() if not key.startswith("quantization")}
    assert sum_weights(measure(tmp_path, config | {"quantization_config": quantization})) == pytest.approx(
        total, rel=0.004
    )


def test_index_says_what_all_weights_take(tmp_path: Path) -> None:
    config, names = (
        LLAMA | {"quantization_config": AWQ},
        {f"model.layers.{n}.mlp.down_proj.qweight": "a.safetensors" for n in range(80)},
    )
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 40_000_000_000}, "weight_map": names}))
    demand = measure(tmp_path, config)
    assert sum_weights(demand) == pytest.approx(40e9, rel=1e-3)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 180_000_000_000}, "weight_map": names}))
    assert sum_weights(measure(tmp_path, config)) == pytest.approx(39.8e9, rel=0.01)  # that is another model's index


def test_heads_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    names = {f"model.layers.{number}.input_layernorm.weight": "a.safetensors" for number in range(62)}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 688_600_000_000}, "weight_map": names}))
    assert sum_weights(measure(tmp_path, DEEPSEEK | {"quantization_config": FP8})) == pytest.approx(671.9e9, rel=0.004)


def test_headers_of_a_model_on_a_hub_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    small = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "num_hidden_layers": 3,
        "vocab_size": 99,
    }
    config = GPT_OSS | small | {"layer_types": ["full_attention"] * 3}
    tensors = sorted(list_tensors(config).items())
    shards = {f"model-{number}.safetensors": dict(tensors[number::3]) for number in range(3)}
    total = sum(write_headers(tmp_path / name, part) for name, part in shards.items())
    index = {name: file for file, part in shards.items() for name in part}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    expected = measure(tmp_path, config)
    (tmp_path / "tokenizer.json").write_text("{}")
    hub.add("tiny/model", {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()})
    host = PluginHost.prepare()
    known = read_model(host, "tiny/model", silent)
    assert not any(known.folder.glob("*.safetensors"))
    fetch_headers(Catalog(host), "tiny/model", known.folder, silent)
    assert {path.name for path in known.folder.glob("*.safetensors")} == shards.keys()
    assert measure_demand(known.shape, size=measure_stored(known)) == expected
    asked = len(hub.requests)
    fetch_headers(Catalog(host), "tiny/model", known.folder, silent)
    assert len(hub.requests) == asked
