"""Makes a model with random weights of a Llama's shape, for longer contexts, as a checkpoint and a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

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
    """Return a random matrix, or the weight of a norm that changes nothing."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return (torch.randn(shape, generator=random) / shape[1] ** 0.5).bfloat16()


def write_gguf(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Write the same model without a tokenizer, for llama.cpp, which is given token ids."""
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
    """Return the name in a GGUF file of a tensor of a checkpoint."""
    if name in ENDS:
        return ENDS[name]
    _, _, layer, stem = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{STEMS[stem]}.weight"


def interleave_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head: llama.cpp rotates neighbours, checkpoints the two halves."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
