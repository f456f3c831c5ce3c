"""Compares three layers at the widths of published models with transformers, for the families with the widest borders.

Widths are the defaults of transformers, which are those of a published model; the numbers of layers, experts, token ids
and n-grams are smaller, and the record names them. Weights are random numbers in bfloat16. The reference computes with
them in float32. A figure is the largest difference of log-probabilities as a share of the largest logit, of a prompt in
chunks and of decodes, whole and in two stages.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from parallax_core.api import Draw, DType, LayerRange, StagePlan
from parallax_core.testing.checks.chain import Chain
from tests.support.checkpoints import SEEING, find_class, roughen
from tests.support.families import make_tokens
from tests.support.torch_backend import TorchBackend

LINEAR, INDEXED = "linear_attention", "indexed_attention"
SPARSE = ["dense", "sparse", "sparse"]
FEW: dict[str, Any] = {
    "num_hidden_layers": 3,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
}
FEW |= {"bos_token_id": 1, "eos_token_id": 2}
WIDE: dict[str, dict[str, Any]] = {
    "deepseek_v4": {
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "n_routed_experts": 16,
    },
    "glm5_next": {
        "indexer_types": ["full"] * 3,
        "layer_types": [LINEAR, INDEXED, LINEAR],
        "mlp_layer_types": SPARSE,
        "n_routed_experts": 12,
    },
    "hy_v4": {
        "indexer_types": ["full", "full", "shared"],
        "layer_types": [INDEXED] * 3,
        "mlp_layer_types": SPARSE,
        "n_routed_experts": 16,
    },
    "qwen4_exp_text": {
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
        "indexer_head_dim": 256,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 16,
        "layer_types": [LINEAR, INDEXED, LINEAR],
        "ngram_vocab_size_base": 4000,
        "num_experts": 32,
        "ple_layer_ids": [1, 3],
        "split_ngram_parts": 8,
    },
    "deepseek_v32": {
        "first_k_dense_replace": 1,
        "layer_types": [INDEXED] * 3,
        "mlp_layer_types": SPARSE,
        "n_group": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "topk_group": 1,
    },
}
"""Model types by the width of what crosses their borders, and what their models have fewer of, or no default for."""
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
CHUNKS = (96, 64, *[1] * 8)
"""The tokens of each step: more than a window, and decodes."""
TOLERANCE = 1e-4
"""Of float32. In bfloat16 the error may be that of transformers in bfloat16."""


def make_config(kind: str) -> Any:
    """Return the configuration of a model with three layers."""
    settings = FEW | WIDE[kind]
    if kind not in SEEING:
        return AutoConfig.for_model(kind, **settings)
    width = AutoConfig.for_model(kind).get_text_config().hidden_size
    return AutoConfig.for_model(kind, text_config=settings, vision_config=SEEING[kind] | {"out_hidden_size": width})


def compute_reference(kind: str, folder: Path, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Return the log-probabilities by transformers, float64 of shape [tokens, vocab size], and the largest logit."""
    model: Any = find_class(kind).from_pretrained(folder, dtype=dtype).eval()
    model.set_experts_implementation("eager")
    with torch.inference_mode():
        logits = model(torch.tensor([make_tokens(sum(CHUNKS), 1)])).logits[0].double()
    return logits.log_softmax(-1), float(logits.abs().max())


def compute_ours(folder: Path, dtype: DType, cuts: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities by the backend torch, float64 of shape [tokens, vocab size]."""
    ranges = [LayerRange(*each) for each in zip((0, *cuts), (*cuts, FEW["num_hidden_layers"]), strict=True)]
    plans = [
        StagePlan(model=folder, layers=each, dtype=dtype, memory_fraction=0.01, max_batch_tokens=max(CHUNKS))
        for each in ranges
    ]
    vocab, tokens, place, answers = int(FEW["vocab_size"]), make_tokens(sum(CHUNKS), 1), 0, list[Any]()
    with Chain([TorchBackend().open_stage(plan) for plan in plans]) as chain:
        seq = chain.open()
        for count in CHUNKS:
            draws = [Draw(offset, 1, vocab) for offset in range(count)]
            answers += chain.step(chain.row(seq, tokens[place : place + count], *draws)).answers
            place += count
    found = torch.full((len(answers), vocab), torch.nan, dtype=torch.float64)
    for row, answer in zip(found, answers, strict=True):
        names, scores = zip(*answer.top, strict=True)
        row[list(names)] = torch.tensor(scores, dtype=torch.float64)
    return found


def compare_wide(kind: str) -> dict[str, Any]:
    """Write a model, and return the errors of the backend torch, and of transformers in bfloat16."""
    with tempfile.TemporaryDirectory() as name:
        folder, config = Path(name), make_config(kind)
        torch.manual_seed(0)
        model = find_class(kind).from_config(config, dtype=torch.bfloat16)
        numbers = sum(each.numel() for each in model.parameters())
        roughen(model)
        model.save_pretrained(folder, max_shard_size="1GB")
        del model
        gc.collect()
        right, largest = compute_reference(kind, folder, torch.float32)
        found: dict[str, Any] = {"parameters": numbers, "hidden_size": config.get_text_config().hidden_size}
        found |= {"settings": FEW | WIDE[kind], "errors": {}}
        for dtype in DTYPES:
            for cuts in ((), (1,)):
                gc.collect()
                error = float((compute_ours(folder, dtype, cuts) - right).abs().max()) / largest
                found["errors"][f"{dtype}, {'two stages' if cuts else 'whole'}"] = error
        gc.collect()
        rounded, _ = compute_reference(kind, folder, torch.bfloat16)
        found["error_of_transformers_in_bfloat16"] = float((rounded - right).abs().max()) / largest
        return found | {"passed": judge(found)}


def judge(found: dict[str, Any]) -> bool:
    """Return whether the errors of a model type are small enough."""
    most = {"float32": TOLERANCE, "bfloat16": found["error_of_transformers_in_bfloat16"]}
    return all(error <= most[each.partition(",")[0]] for each, error in found["errors"].items())
