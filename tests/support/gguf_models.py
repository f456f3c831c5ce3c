"""Writes a random model of transformers as a GGUF file, as llama.cpp's conversions do, with the gguf package's names.

The names of tensors come from ``gguf.TensorNameMap``, and keys from ``gguf.GGUFWriter``: nothing here is read from the
tables of what is tested.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import save_family
from tests.support.gguf_kin import EVEN, Kin

Array = npt.NDArray[np.float32]
Kind = gguf.GGMLQuantizationType
NAMES = {
    **{key: {"e_score_correction_bias": "exp_probs_b"} for key in ("deepseek2", "ernie4_5-moe")},
    "lfm2": {"model.embedding_norm": "token_embd_norm", "conv.conv": "shortconv.conv"},
    "gpt-oss": {"self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp"},
    "hunyuan-dense": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
}
"""Names that the conversions make themselves, or that `gguf.TensorNameMap` has for several tensors."""


def save_original(kin: Kin, folder: Path, kind: Kind | None = None) -> dict[str, Array]:
    """Save the model in ``folder`` as transformers has it, its matrices rounded to a type, and return its tensors."""
    save_family(kin.family, folder, **{**EVEN, **kin.changes})
    tensors = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    rounded = {name: round_to(name, value.float().numpy(), kind) for name, value in tensors.items()}
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file({name: torch.from_numpy(value) for name, value in rounded.items()}, folder / "model.safetensors")
    return rounded


def is_turned(name: str) -> bool:
    """Whether transformers keeps the matrices of a tensor transposed: those of all experts of GPT-OSS."""
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def keeps_floats(name: str) -> bool:
    """Whether llama.cpp never quantises a tensor."""
    return any(part in name for part in ("ffn_gate_inp", "shortconv.conv", "conv.conv", "mlp.gate.", "router", "bias"))


def round_to(name: str, values: Array, kind: Kind | None) -> Array:
    """Return a matrix as a type keeps it."""
    rows = values.swapaxes(-1, -2) if (turned := is_turned(name)) else values
    if kind is None or not is_packed(rows, kind) or keeps_floats(name):
        return np.ascontiguousarray(values)
    found = gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(rows), kind), kind).astype(np.float32)
    return np.ascontiguousarray(found.swapaxes(-1, -2) if turned else found)


def is_packed(values: Array, kind: Kind) -> bool:
    """Whether a tensor is quantised: a matrix of whole blocks."""
    return values.ndim >= 2 and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0


def write_gguf(kin: Kin, folder: Path, path: Path, kind: Kind | None = None) -> Path:
    """Write the model in ``folder`` as a GGUF file, its matrices in a type; None: in float32."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, kin.name)
    add_settings(writer, kin, config)
    add_vocabulary(writer, config["vocab_size"])
    for name, values in list_tensors(kin, folder, config):
        if kind is None or not is_packed(values, kind) or keeps_floats(name):
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Add a vocabulary of words."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "ab", *(f"t{number}" for number in range(size - 3))])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)


def add_settings(writer: gguf.GGUFWriter, kin: Kin, config: Mapping[str, Any]) -> None:
    """Add the settings, as the conversion of the architecture does."""
    name, layers = kin.name, config["num_hidden_layers"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps", 1e-6)))
    kv_heads = config.get("num_key_value_heads", config["num_attention_heads"])
    if name == "lfm2":
        kv_heads = [kv_heads if kind != "conv" else 0 for kind in config["layer_types"]]
    writer.add_head_count_kv(1 if name == "deepseek2" else kv_heads)
    if name not in ("deepseek2", "phi3"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    add_rope(writer, kin, config, head)
    if config.get("sliding_window") and name not in ("llama", "qwen2", "qwen2moe", "qwen3moe", "qwen3", "smollm3"):
        writer.add_sliding_window(config["sliding_window"])
    if name == "exaone4":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    add_experts(writer, config)
    if name in MORE:
        MORE[name](writer, config)


def add_rope(writer: gguf.GGUFWriter, kin: Kin, config: Mapping[str, Any], head: int) -> None:
    """Add the settings of rope."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    base, share = rope["rope_theta"], rope.get("partial_rotary_factor", 1.0)
    if kin.name == "hunyuan-dense":
        base *= rope["alpha"] ** (head / (head - 2))
    writer.add_rope_freq_base(base)
    writer.add_rope_dimension_count(config["qk_rope_head_dim"] if kin.name == "deepseek2" else int(head * share))
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name, add in (
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
        ):
            if name in rope:
                add(rope[name])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_experts(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Add the settings of experts."""
    if count := first(config, "n_routed_experts", "moe_num_experts", "num_local_experts", "num_experts"):
        writer.add_expert_count(count)
        writer.add_expert_used_count(first(config, "num_experts_per_tok", "moe_k"))
        if config["model_type"] == "gpt_oss":
            writer.add_expert_feed_forward_length(config["intermediate_size"])
        elif config["model_type"] != "mixtral":
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def first(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first of some settings that there is; None without any."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def add_gemma(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_granite(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def add_latent(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_vocab_size(config["vocab_size"])
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(value=True)
    if config["n_group"] > 1:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def add_ernie(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    writer.add_leading_dense_block_count(config["moe_layer_start_index"])
    writer.add_expert_shared_count(config["moe_num_shared_experts"])


def add_lfm2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_vocab_size(config["vocab_size"])


def add_shared(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


MORE: Mapping[str, Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]] = {
    "gemma2": add_gemma,
    "gemma3": add_gemma,
    "granite": add_granite,
    "deepseek2": add_latent,
    "ernie4_5-moe": add_ernie,
    "lfm2": add_lfm2,
    "qwen2moe": add_shared,
}


def list_tensors(kin: Kin, folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the file."""
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kin.name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    stored = {name: value.numpy() for name, value in load_file(folder / "model.safetensors").items()}
    experts: dict[str, list[Array]] = {}
    for name in sorted(stored, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(".")]):
        if ".experts." in name and any(part.isdigit() for part in name.split(".experts.")[1].split(".")):
            before, after = name.split(".experts.")
            experts.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(stored[name])
        else:
            for new, values in modify(kin, name, stored[name], config):
                yield rename(kin, names, new), values
    for name, each in experts.items():
        yield rename(kin, names, name), np.stack(each)
    yield from list_factors(config)


def rename(kin: Kin, names: gguf.TensorNameMap, name: str) -> str:
    """Return the name in the file."""
    stem, dot, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        stem, dot, suffix = name, ".", "weight"
    for ours, theirs in NAMES.get(kin.name, {}).items():
        if stem.endswith(ours):
            layer = f"blk.{stem.split('.')[2]}." if ".layers." in stem else ""
            return f"{layer}{theirs}.{suffix}"
    found = names.get_name(stem)
    assert found, name
    return f"{found}{dot}{suffix}"


def reorder(kin: Kin, name: str, values: Array, config: Mapping[str, Any]) -> Array:
    """Return a tensor as a conversion stores it, in one piece."""
    if kin.turns and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
        heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if kin.adds_1 and name.endswith("norm.weight"):
        values = values + 1
    if name.endswith("conv.conv.weight"):
        values = values.squeeze(1)
    if name.endswith("shared_expert_gate.weight"):
        values = values.squeeze(0)
    return values


def modify(kin: Kin, name: str, values: Array, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield what a conversion makes of a tensor."""
    values = reorder(kin, name, values, config)
    if name.endswith("e_score_correction_bias"):
        yield f"{name}.bias", values.reshape(-1)
    elif name.endswith("kv_b_proj.weight"):
        heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]
        both = values.reshape(heads, plain + config["v_head_dim"], -1)
        yield name.replace("kv_b", "k_b"), both[:, :plain].swapaxes(1, 2)
        yield name.replace("kv_b", "v_b"), both[:, plain:]
    elif ".experts.gate_up_proj" in name or ".experts.down_proj" in name:
        yield from split_experts(name, values)
    else:
        yield name, values


def split_experts(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of all experts of GPT-OSS."""
    parts = (
        {"gate_proj": values[..., 0::2], "up_proj": values[..., 1::2]} if "gate_up" in name else {"down_proj": values}
    )
    for word, part in parts.items():
        stem = name.replace("gate_up_proj", word)
        yield (
            (stem.replace("_bias", ".bias"), part)
            if stem.endswith("_bias")
            else (f"{stem}.weight", part.swapaxes(1, 2))
        )


def list_factors(config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the tables of rope."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        width, found = config["head_dim"], []
        trained, low, high = (
            rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, width, 2) / width):
            wave = 2 * math.pi / frequency
            if wave < trained / high:
                found.append(1.0)
            elif wave > trained / low:
                found.append(rope["factor"])
            else:
                smooth = (trained / wave - low) / (high - low)
                found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        yield "rope_freqs.weight", np.array(found, np.float32)
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", np.array(rope["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(rope["short_factor"], np.float32)
