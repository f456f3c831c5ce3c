"""Fixtures of the tests that run in an environment with vLLM, which `make engines` makes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from parallax_backend_vllm.backend import VllmBackend
from parallax_backend_vllm.engine import VllmEngine
from parallax_core.api import EnginePlan
from parallax_core.testing.shared_engine import SharedEngine
from tests.support.real_server import pull_model

OPTIONS = {"max_model_len": 2048, "kv_cache_gb": 1.0, "threads": 1}
THETA = {"rope_type": "default", "rope_theta": 250.0}
TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "rope_parameters": THETA,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS,
    "qwen3_next": EXPERTS | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "gemma3_text": {
        "sliding_window": 8,
        "query_pre_attn_scalar": 32,
        "layer_types": SLIDING,
        "rope_parameters": {"full_attention": THETA, "sliding_attention": THETA},
    },
}
"""What the configuration of a family has besides `TINY`."""


def pytest_configure(config: pytest.Config) -> None:
    """Tolerate warnings from vLLM and what it imports; those from this project remain errors."""
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::parallax_")
    warnings.simplefilter("default")  # for what is found when the process ends, as lines of the configuration are not


def save_tiny(kind: str, folder: Path) -> Path:
    """Save a tiny random model of a family, and return its folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **TINY | FAMILIES.get(kind, {}))
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def find_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a tiny random model of a family, once."""
    folder = tmp_path_factory.mktemp("families")
    return cache(lambda kind: save_tiny(kind, folder / kind))


def make_engine(folder: Path, **options: object) -> VllmEngine:
    """Return an engine for the model in float32, not started."""
    plan = EnginePlan(model=folder, dtype="float32", max_running=32, options={**OPTIONS, **options})
    return VllmBackend().open_engine(plan)


@pytest.fixture(scope="session")
def model() -> Path:
    """Return the folder of the real model."""
    return pull_model()


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    """Return the tokenizer of the model."""
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture(scope="session")
def open_engine(model: Path) -> Callable[..., VllmEngine]:
    """Return a function that opens an engine with further options, not started."""
    return partial(make_engine, model)


@pytest.fixture(scope="session")
def shared(model: Path) -> Iterator[SharedEngine]:
    """Return an engine that is started once for all tests."""
    engine = SharedEngine(lambda: make_engine(model))
    yield engine
    engine.close()
