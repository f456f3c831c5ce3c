"""Models with experts, of which each is a tensor of its own or all are one, are written in fewer bits and read back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from parallax_core.api import (
    Draw,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Unsupported,
)
from parallax_core.api.source import find_locations
from parallax_core.models.stages import open_stage
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.dialect import write_tokenizer
from parallax_quantize.cli import app
from tests.support.checkpoints import fuse_experts, save_family

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SIZES = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 96, "vocab_size": 256}
IDS = [3, 11, 5, 29, 17, 2, 40, 8]


def write_model(kind: str, folder: Path, *, is_one: bool) -> Path:
    """Write a model whose experts are one tensor of all, or one by one."""
    save_family(kind, folder, **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    if is_one and kind != "gpt_oss":  # which has no other form
        fuse_experts(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"rope_theta": config["rope_parameters"]["rope_theta"]}  # as published models have it
    if kind == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts", config.get("num_experts"))
    (folder / "config.json").write_text(json.dumps(config))
    (folder.parent / "bytes").mkdir(exist_ok=True)
    write_tokenizer(folder.parent / "bytes")
    shutil.move(folder.parent / "bytes" / "tokenizer.json", folder)
    shutil.rmtree(folder.parent / "bytes")
    return folder


def quantize(model: Path, *options: object) -> str:
    return CliRunner().invoke(app, [str(model), *map(str, options)], catch_exceptions=False).stdout


def compute(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0].numpy()


def draw(folder: Path, backend: str) -> list[int]:
    """Return the most likely next tokens of the beginnings of a text on a backend."""
    host, found = PluginHost.prepare(), list[int]()
    plan = StagePlan(model=folder, dtype="float32", memory_fraction=1e-3)
    stage = open_stage(host, host.backends().get(backend), plan)
    for end in range(1, len(IDS) + 1):
        stage.edit([Open(SeqId(end), SequenceSpec(prompt_length=end, sampling=Sampling(temperature=0)))])
        answers = stage.step(StageBatch((Row(SeqId(end), 0, tuple(IDS[:end]), (Draw(end - 1),)),))).wait().answers
        found += answers[0].tokens  # type: ignore[union-attr]
    stage.close()
    return found


@pytest.mark.parametrize(
    ("kind", "is_one", "form"),
    [
        *((kind, kind == "gpt_oss", "int8") for kind in ("qwen3_moe", "mixtral", "gpt_oss")),
        *(("qwen3_moe", True, form) for form in ("int8", "int4", "mxfp4")),
        ("gpt_oss", True, "mxfp4"),
    ],
)
def test_mlx_lm_reads_experts_that_are_written(tmp_path: Path, kind: str, is_one: bool, form: str) -> None:
    plain, out = write_model(kind, tmp_path / "plain", is_one=is_one), tmp_path / "out"
    quantize(plain, "--to", form, "--out", out)
    model, config = mlx_lm.utils.load_model(out)
    model.set_dtype(mx.float32)
    found = np.array(model(mx.array([IDS]))[0].astype(mx.float32))
    wanted = compute(plain)
    assert np.abs(found - wanted).mean() < {"int8": 0.1, "int4": 0.9, "mxfp4": 1.0}[form] * wanted.std()
    assert config["quantization"]["bits"] == (8 if form == "int8" else 4)
    for backend in ("torch", "mlx"):
        assert draw(out, backend) == found.argmax(-1).tolist()


@pytest.mark.parametrize("is_one", [False, True])
def test_other_layout_has_each_expert(tmp_path: Path, is_one: bool) -> None:
    plain, out = write_model("qwen3_moe", tmp_path / "plain", is_one=is_one), tmp_path / "out"
    quantize(plain, "--to", "int8", "--for", "compressed-tensors", "--out", out)
    names = {place.name for place in find_locations(out / "model.safetensors")}
    assert "model.layers.0.mlp.experts.3.down_proj.weight_packed" in names
    assert not any("gate_up_proj" in name or name.endswith("down_proj.weight") for name in names)
    wanted = compute(plain).argmax(-1).tolist()
    found = draw(out, "torch")
    assert found == draw(out, "mlx")
    assert sum(map(int.__eq__, found, wanted)) >= len(IDS) // 2


def test_experts_of_unknown_forms_are_refused(tmp_path: Path) -> None:
    plain = write_model("gpt_oss", tmp_path / "plain", is_one=True)
    with pytest.raises(Unsupported, match="is not written in this layout"):
        quantize(plain, "--to", "int8", "--for", "compressed-tensors", "--out", tmp_path / "out")
    [file] = [
        each for each in plain.glob("*.safetensors") if b'"model.layers.0.mlp.experts.down_proj"' in each.read_bytes()
    ]
    tensors = load_file(file)
    tensors["model.layers.0.mlp.experts.strange"] = tensors.pop("model.layers.0.mlp.experts.down_proj")
    save_file(tensors, file)
    (plain / "model.safetensors.index.json").unlink()
    with pytest.raises(Unsupported, match="strange is of experts in a form that is not quantised"):
        quantize(plain, "--to", "int8", "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize("is_one", [False, True])
def test_text_runs_through_experts(tmp_path: Path, is_one: bool) -> None:
    plain, out, text = write_model("qwen3_moe", tmp_path / "plain", is_one=is_one), tmp_path / "out", tmp_path / "text"
    text.write_text("A text runs through the layers, and each token through two experts. " * 20)
    quantize(plain, "--to", "int4", "--calibrate", text, "--out", out)
    assert {place.name for place in find_locations(out / "model.safetensors")} >= {
        "model.layers.0.mlp.switch_mlp.down_proj.scales",
        "model.layers.0.self_attn.q_proj.scales",
    }
