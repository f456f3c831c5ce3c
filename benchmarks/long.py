"""A model for long contexts with random weights, and attention to such contexts by itself; see `benchmarks.peers`."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

from benchmarks.cuda import make_model
from benchmarks.kernels import DIM, HEADS, KV_HEADS, PAGE, measure_reading, time_in_turn
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule, attend
from parallax_backend_torch.store import CacheSpec, keep_as
from tests.support.tinyllama import TinyLlama

CONTEXT, CHUNK = 32768, 512
CONTEXTS = (1024, 8192, CONTEXT)
FILE = "long.gguf"
"""The name of the GGUF file."""


def make_long_model(source: Path, target: Path, context: int) -> None:
    """Write a model with random bfloat16 weights to ``target``.

    Args:
        source: the folder of a Llama in one file, with tied embeddings and without biases.
        target: a folder, which is made; it may exist and be empty.
        context: the longest sequence in tokens.
    """
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config |= {"max_position_embeddings": context, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    make_model(target, config["num_hidden_layers"], "cpu", config)
    weights = {name: weight for path in target.glob("*.safetensors") for name, weight in load_file(path).items()}
    for path in (*source.glob("tokenizer*.json"), *source.glob("*.jinja")):
        shutil.copy(path, target)
    write_gguf(target / FILE, config, weights)


def write_gguf(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.dimension_count": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads, tensors = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}, {}
    for name, weight in weights.items():
        count = next((count for part, count in heads.items() if part in name), 0)
        turned = interleave_halves(weight, count) if count else weight
        tensors[f"{names.get_name(name, ('.weight',))}"] = turned.float().numpy()
    found = {**{f"llama.{name}": value for name, value in values.items()}, "tokenizer.ggml.model": "no_vocab"}
    TinyLlama(values=found, tensors=tensors, packing=gguf.GGMLQuantizationType.BF16).write(path)


def interleave_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head: llama.cpp rotates neighbours, checkpoints the two halves."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


POOL_BYTES = 2**28
"""Memory for the pools of decodes: as many layers as fit, so that none is in a cache when its turn comes again."""
TURNS = 5


@dataclass(frozen=True)
class Form:
    """The dtype of keys and values, and whether queries may be rounded to bfloat16."""

    dtype: torch.dtype
    narrow: bool

    @property
    def token_bytes(self) -> int:
        return keep_as(CacheSpec("full", ((KV_HEADS, DIM),) * 2), self.dtype).num_bytes


FORMS = {
    "float32": Form(torch.float32, narrow=False),
    "bfloat16": Form(torch.bfloat16, narrow=True),
    "int8": Form(torch.int8, narrow=True),
}


def make_pool(form: Form, slots: int) -> Pool:
    shape = (slots, KV_HEADS, DIM)
    if form.dtype != torch.int8:
        return Pool(*(torch.randn(shape).to(form.dtype) for _ in range(2)))
    codes = (torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2))
    return Pool(*codes, *(torch.full(shape[:2], 0.01, dtype=torch.bfloat16) for _ in range(2)))


def measure_attention(form: Form, context: int, rows: int, tokens: int) -> dict[str, Any]:
    """Return the figures of a layer's attention: ``rows`` rows of ``tokens`` queries that end a context."""
    needed = context * rows * form.token_bytes
    layers = max(1, POOL_BYTES // needed) if tokens == 1 else 2
    pools = [make_pool(form, context * rows) for _ in range(layers)]
    pages, query = context // PAGE, torch.randn(rows * tokens, HEADS, DIM)
    table = Rows(
        torch.randperm(pages * rows).int(),
        (torch.arange(rows) * pages).int(),
        torch.full((rows,), context - tokens).int(),
        torch.full((rows,), tokens).int(),
        PAGE,
    )
    rule = Rule(DIM**-0.5, narrow=form.narrow)
    calls = {str(number): partial(attend, query, pool, table, rule) for number, pool in enumerate(pools)}
    seconds = statistics.median(time_in_turn(calls, TURNS).values())
    operations = 4 * HEADS * DIM * rows * sum(range(context - tokens + 1, context + 1))
    return {
        "ms": round(1000 * seconds, 3),
        "gigabytes_per_s": round(needed / seconds / 1e9, 2),
        "gflops": round(operations / seconds / 1e9, 1),
    }


def measure_attention_all(
    contexts: tuple[int, ...] = CONTEXTS, chunk: int = CHUNK
) -> Iterator[tuple[str, dict[str, Any]]]:
    torch.manual_seed(0)
    yield "reading memory", {"gigabytes_per_s": round(measure_reading(TURNS) / 1e9, 2)}
    for context in contexts:
        for name, form in FORMS.items():
            for title, rows, tokens in (("1 decode", 1, 1), ("8 decodes", 8, 1), (f"chunk of {chunk}", 1, chunk)):
                yield f"{title} at {context}, {name}", measure_attention(form, context, rows, tokens)
