"""A model for long contexts with random weights, and attention to such contexts by itself; see `benchmarks.peers`."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from parallax_backend_torch.kernels import library
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule, attend
from parallax_backend_torch.store import CacheSpec, keep_as

CONTEXT, CHUNK = 32768, 512
CONTEXTS = (1024, 8192, CONTEXT)
FILE = "long.gguf"
"""The name of the GGUF file."""
STEMS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""The names of a layer's tensors in a checkpoint, and in a GGUF file."""
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def make_long_model(source: Path, target: Path, context: int, seed: int = 0) -> None:
    """Write a model with random bfloat16 weights to ``target``.

    Args:
        source: the folder of a Llama in one file, with tied embeddings and without biases.
        target: a folder, which is made; it may exist and be empty.
        context: the longest sequence in tokens.
        seed: the seed of the weights.
    """
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config |= {"max_position_embeddings": context, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    random = torch.Generator().manual_seed(seed)
    weights = {
        name: draw_weight(tuple(weight.shape), random)
        for name, weight in sorted(load_file(source / "model.safetensors").items())
    }
    for path in (*source.glob("tokenizer*.json"), *source.glob("*.jinja")):
        shutil.copy(path, target)
    (target / "config.json").write_text(json.dumps(config, indent=2))
    write_gguf(target / FILE, config, weights)
    save_file(weights, target / "model.safetensors", {"format": "pt"})


def draw_weight(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return (torch.randn(shape, generator=random) / shape[1] ** 0.5).bfloat16()


def write_gguf(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, weight in weights.items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        count = next((count for part, count in heads.items() if part in name), 0)
        turned = interleave_halves(weight, count) if count else weight
        if turned.dim() == 1:
            writer.add_tensor(rename_tensor(name), turned.float().numpy())
        else:
            raw = turned.contiguous().view(torch.uint16).numpy().view("uint8")
            writer.add_tensor(rename_tensor(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rename_tensor(name: str) -> str:
    if name in ENDS:
        return ENDS[name]
    _, _, layer, stem = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{STEMS[stem]}.weight"


def interleave_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head: llama.cpp rotates neighbours, checkpoints the two halves."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
"""The shape of SmolLM2-135M."""
READ_BYTES = 2**28
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


def time_calls(calls: list[Callable[[], object]]) -> float:
    times = []
    for _ in range(TURNS):
        for call in calls:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure_read() -> float:
    native, memory = library.find_library(), torch.zeros(READ_BYTES // 4)
    assert native is not None
    return READ_BYTES / time_calls([lambda: native.plx_read(memory.data_ptr(), memory.numel())])


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
    seconds = time_calls([lambda pool=pool: attend(query, pool, table, rule) for pool in pools])  # type: ignore[misc]
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
    yield "reading memory", {"gigabytes_per_s": round(measure_read() / 1e9, 2)}
    for context in contexts:
        for name, form in FORMS.items():
            for title, rows, tokens in (("1 decode", 1, 1), ("8 decodes", 8, 1), (f"chunk of {chunk}", 1, chunk)):
                yield f"{title} at {context}, {name}", measure_attention(form, context, rows, tokens)
