"""Weights are read once, kept in the form asked for, and take hardly more memory than that on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from parallax_backend_torch.loaded import SATURATION_ROWS
from parallax_core.api import (
    Draw,
    Drawn,
    LayerRange,
    Open,
    ParallaxError,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Unsupported,
)
from tests.support.checkpoints import save_family
from tests.support.torch_backend import TorchBackend

MOST = 1.25
"""Times the memory of the weights that loading may take; pages of the file that happen to be mapped count too."""
LAYERS = 32
PLAIN = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 6}
SMALL = PLAIN | {"num_hidden_layers": LAYERS, "vocab_size": 4096, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}


def save_llama(folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Save a random Llama of some sixty million numbers."""
    width, inner, vocab = SMALL["hidden_size"], SMALL["intermediate_size"], SMALL["vocab_size"]
    shapes = {"embed_tokens": (vocab, width), "norm": (width,)}
    for index in range(LAYERS):
        layer = f"layers.{index}"
        shapes |= {f"{layer}.self_attn.{name}_proj": (width, width) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (width, inner), f"{layer}.input_layernorm": (width,)}
        shapes[f"{layer}.post_attention_layernorm"] = (width,)
    torch.manual_seed(0)
    weights = {f"model.{name}.weight": (torch.randn(shape) * 0.05).to(dtype) for name, shape in shapes.items()}
    weights["lm_head.weight"] = (torch.randn(vocab, width) * 0.05).to(dtype)
    config = SMALL | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model nobody writes to."""
    folder = tmp_path_factory.mktemp("llama")
    save_llama(folder)
    return folder


PEAK = """
import sys
from dataclasses import replace
from pathlib import Path
from parallax_backend_torch.api import Decoder
from parallax_backend_torch.backend import TorchBackend
from parallax_core.api import LayerRange, StagePlan

def read(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

plan = StagePlan(model=Path(sys.argv[1]), layers=LayerRange(30, 32), memory_fraction=1e-3, blocks=Decoder)
for kind in sys.argv[2:]:
    plan = replace(plan, options={"weights": kind, "threads": 1})
    TorchBackend().open_stage(plan).close()  # code that runs for the first time takes memory too
    before = read("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    stage = TorchBackend().open_stage(replace(plan, layers=None))
    print(kind, read("VmHWM") - before, stage.info.weight_bytes)
    stage.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells, and no Mac has CUDA")
@pytest.mark.nightly
def test_loading_takes_hardly_more_than_the_weights(llama: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PEAK, str(llama), "float32", "bfloat16", "int8", "int4"]
    ran = subprocess.run(command, env={}, capture_output=True, text=True, timeout=120, check=True)
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert {kind: int(peak) / int(weights) for kind, peak, weights in rows if int(peak) > MOST * int(weights)} == {}


def test_stage_takes_the_memory_of_its_layers(llama: Path) -> None:
    sizes = {}
    for layers in (LayerRange(0, LAYERS), LayerRange(2, 4), LayerRange(LAYERS - 4, LAYERS)):
        stage = TorchBackend().open_stage(StagePlan(model=llama, layers=layers, memory_fraction=1e-3))
        sizes[layers.start, layers.stop] = stage.info.weight_bytes
        stage.close()
    layer = sizes[2, 4] / 2
    head = sizes[LAYERS - 4, LAYERS] - 4 * layer
    assert sizes[0, LAYERS] == pytest.approx(LAYERS * layer + 2 * head, rel=1e-3)


def test_attention_and_ends_are_kept_in_no_fewer_than_8_bits(llama: Path) -> None:
    plan = StagePlan(model=llama, memory_fraction=1e-3, options={"weights": "int4"})
    stage = TorchBackend().open_stage(plan)
    stage.close()
    width, inner, vocab = SMALL["hidden_size"], SMALL["intermediate_size"], SMALL["vocab_size"]
    fine, coarse = 2 * vocab * width + LAYERS * 4 * width * width, LAYERS * 3 * width * inner
    norms = (2 * LAYERS + 1) * width * 4
    assert stage.info.weight_bytes == norms + (fine * 34 + coarse * 20) // 32


def test_step_has_the_tokens_that_are_asked_for(llama: Path) -> None:
    stage = TorchBackend().open_stage(StagePlan(model=llama, device="cpu", memory_fraction=1e-3, max_batch_tokens=77))
    stage.close()
    assert stage.info.max_batch_tokens == 77
    assert stage.info.saturation_rows == SATURATION_ROWS["cpu"]


def draw_tokens(folder: Path, count: int = 8, weights: str = "auto") -> list[tuple[int, tuple[tuple[int, float], ...]]]:
    """Return greedy tokens after a few, each with the best of its place."""
    plan = StagePlan(model=folder, memory_fraction=0.01, options={"weights": weights})
    stage = TorchBackend().open_stage(plan)
    seq = SeqId(1)
    stage.edit([Open(seq, SequenceSpec(prompt_length=4, sampling=Sampling(temperature=0)))])
    tokens: tuple[int, ...] = (5, 6, 7, 8)
    found: list[tuple[int, tuple[tuple[int, float], ...]]] = []
    for _ in range(count):
        start = 4 + len(found) - 1 if found else 0
        [answer] = stage.step(StageBatch((Row(seq, start, tokens, (Draw(len(tokens) - 1, 1, 5),)),))).wait().answers
        assert isinstance(answer, Drawn)
        found.append((answer.tokens[0], answer.top))
        tokens = answer.tokens
    stage.close()
    return found


@pytest.mark.parametrize(("kind", "tolerance"), [("bfloat16", 1e-3), ("int8", 0.05), ("int4", 0.5)])
def test_weights_in_fewer_bits_give_nearly_the_same(llama: Path, kind: str, tolerance: float) -> None:
    expected = dict(draw_tokens(llama, 1, "float32")[0][1])
    found = dict(draw_tokens(llama, 1, kind)[0][1])
    shared = expected.keys() & found.keys()
    assert shared
    assert max(abs(expected[token] - found[token]) for token in shared) < tolerance


def test_dtype_that_a_cpu_does_not_have_is_refused(llama: Path) -> None:
    with pytest.raises(Unsupported, match="float16"):
        TorchBackend().open_stage(StagePlan(model=llama, dtype="float16", device="cpu"))


def test_tensors_nobody_uses_are_refused(tmp_path: Path) -> None:
    save_family("qwen2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("Qwen2ForCausalLM", "LlamaForCausalLM"))
    save_file({"model.layers.0.self_attn.q_norm.extra": torch.ones(8)}, tmp_path / "more.safetensors", {"format": "pt"})
    with pytest.raises(ParallaxError, match=r"the tensor layers\.0\.self_attn\.q_norm\.extra is not used"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))


def test_quantised_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "exl3"}}))
    with pytest.raises(Unsupported, match="does not read the form of the weights: exl3"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))


def test_width_of_config_json_is_that_of_the_embedding(tmp_path: Path) -> None:
    save_family("gemma2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 999_999_999}))
    with pytest.raises(ParallaxError, match=r"'hidden_size' in config.json is 999999999, and the embedding has 32"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))


def test_sizes_that_no_model_has_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    path = tmp_path / "config.json"
    kept = path.read_text()
    path.write_text(json.dumps(json.loads(kept) | {"head_dim": 2**31}))
    with pytest.raises(ParallaxError, match="heads of 2147483648 numbers are not supported"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))
    path.write_text(kept)
    [file] = [each for each in tmp_path.glob("*.safetensors") if b"layers.0.self_attn.k_proj" in each.read_bytes()]
    tensors = load_file(file)
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file(tensors | {name: tensors[name][:, :1].contiguous()}, file, {"format": "pt"})
    with pytest.raises(ParallaxError, match="have rows of several widths"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))
