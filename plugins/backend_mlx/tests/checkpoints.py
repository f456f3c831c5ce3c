"""Random checkpoints of many architectures, as transformers saves them: in many small files with an index."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from parallax_backend_mlx.architecture import find_classes
from parallax_backend_mlx.runtime import flatten_tree, mx

LAYERS = 4
FILE_BYTES = 12_000
INDEX = "model.safetensors.index.json"

THETA = {"rope_type": "default", "rope_theta": 250.0}
BASE: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_size": 32,
    "initializer_range": 0.3,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": THETA,
    "vocab_size": 97,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS,
    "gemma3_text": {
        "sliding_window": 4,
        "query_pre_attn_scalar": 8,
        "layer_types": SLIDING,
        "rope_parameters": {"full_attention": THETA | {"rope_theta": 5000.0}, "sliding_attention": THETA},
    },
    "gpt_oss": EXPERTS | {"sliding_window": 4, "layer_types": SLIDING},
    "deepseek_v3": EXPERTS
    | {
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "topk_group": 1,
        "v_head_dim": 8,
    },
    "qwen3_next": EXPERTS
    | LINEAR
    | {
        "shared_expert_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "qwen3_5": LINEAR,
    "minimax_m2": EXPERTS | {"rotary_dim": 8, "shared_intermediate_size": 0},
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "granitemoe": EXPERTS,
}


def save_random(kind: str, folder: Path, file_bytes: int = FILE_BYTES) -> None:
    """Save a random model of architecture ``kind`` in ``folder``, in files of at most ``file_bytes`` or one tensor."""
    config = copy.deepcopy(BASE | KINDS[kind])
    if kind == "gpt_oss":  # what transformers saves of it, mlx-lm does not read
        _save_plain({"model_type": kind, "rope_theta": 250.0, **config}, folder)
        return
    torch.manual_seed(0)
    made = AutoConfig.for_model("qwen3_5_text" if kind == "qwen3_5" else kind, **config)
    with _silence():
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms are made of ones, or of zeros
                parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder, max_shard_size=file_bytes)
    if kind == "qwen3_5":  # mlx-lm knows it as the text part of a larger model
        path = folder / "config.json"
        path.write_text(json.dumps({"model_type": kind, "text_config": json.loads(path.read_text())}))


def _save_plain(config: dict[str, Any], folder: Path) -> None:
    """Save a random model of mlx-lm in a file for each layer and one for the rest."""
    model_class, arguments_class = find_classes(config)
    model = model_class(arguments_class.from_dict(config))  # type: ignore[attr-defined]
    files: dict[str, dict[str, mx.array]] = {}
    for seed, (name, array) in enumerate(flatten_tree(model.parameters())):
        number = find_layer(name)
        file = f"model-{LAYERS if number is None else number}.safetensors"
        files.setdefault(file, {})[name] = mx.random.normal(array.shape, key=mx.random.key(seed)) * 0.3
    folder.mkdir(exist_ok=True)
    for file, weights in files.items():
        mx.save_safetensors(str(folder / file), weights)
    index = {"weight_map": {name: file for file, weights in files.items() for name in weights}}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


@contextmanager
def _silence() -> Iterator[None]:
    """Keep transformers from drawing progress bars, and from telling of every default it fills in."""
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_progress_bar()


@functools.cache
def find_layer(tensor: str) -> int | None:
    """Return the layer a tensor belongs to, or None for what is before or behind them."""
    found = re.search(r"layers\.(\d+)\.", tensor)
    return int(found[1]) if found else None
