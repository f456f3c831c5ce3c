"""Tiny random models, saved by transformers, give the same logits and tokens here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from parallax_backend_mlx.backend import MlxBackend, open_network
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import Draw, Drawn, Open, Row, Sampling, SeqId, SequenceSpec, StageBatch, StagePlan

PROMPT = tuple((7 * n * n + 3 * n + 5) % 97 for n in range(40))
TOLERANCE = 1e-4
"""Largest difference of two logits, as a share of the largest logit."""

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
THETA = {"rope_type": "default", "rope_theta": 250.0}
HALF = THETA | {"partial_rotary_factor": 0.5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

CASES: list[tuple[str, dict[str, Any], int]] = [
    ("llama", {"rope_parameters": THETA, "tie_word_embeddings": True}, 256),
    ("llama", {"rope_parameters": THETA, "tie_word_embeddings": False}, 256),
    ("llama", {"rope_parameters": THETA | {"rope_type": "linear", "factor": 4.0}}, 256),
    ("llama", {"rope_parameters": THETA | LLAMA3 | {"original_max_position_embeddings": 32}}, 256),
    ("llama", {"rope_parameters": THETA | {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 64}, 64),
    ("mistral", {"rope_parameters": THETA, "sliding_window": 24}, 24),
    ("qwen2", {"rope_parameters": THETA}, 256),
    ("qwen3", {"rope_parameters": THETA, "tie_word_embeddings": True}, 256),
    (
        "qwen3_moe",
        {"rope_parameters": THETA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        256,
    ),
    ("phi3", {"rope_parameters": HALF, "sliding_window": None}, 256),
    ("stablelm", {"rope_parameters": HALF}, 256),
    ("glm4", {"rope_parameters": HALF}, 256),
    ("gemma2", {"rope_parameters": THETA, "sliding_window": 24, "query_pre_attn_scalar": 8}, 24),
    ("cohere2", {"rope_parameters": THETA, "sliding_window": 8}, 256),
    ("olmo2", {"rope_parameters": THETA}, 256),
]
"""Architecture, what is set, and the longest context the stage may offer."""


def make_model(kind: str, changes: dict[str, Any], folder: Path) -> Any:
    """Save a random model of transformers in ``folder`` and return it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(BASE | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Transformers draws progress bars and tells of every default it fills in."""
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_progress_bar()


def find_error(folder: Path, model: Any, context: int = len(PROMPT)) -> float:
    """Return the largest difference of logits over the prompt, as a share of the largest."""
    network, _ = open_network(StagePlan(model=folder), read_checkpoint(folder))
    tokens = PROMPT[:context]
    found = network.run_tokens(tokens, network.make_cache(), range(len(tokens)))
    with torch.inference_mode():
        expected = mx.array(model(torch.tensor([list(tokens)])).logits[0].numpy())
    error: Any = mx.max(mx.abs(found - expected)) / mx.max(mx.abs(expected))
    return float(error.item())


@pytest.mark.parametrize(("kind", "changes", "context"), CASES)
def test_logits_are_those_of_transformers(kind: str, changes: dict[str, Any], context: int, tmp_path: Path) -> None:
    model = make_model(kind, changes, tmp_path)
    stage = MlxBackend().open_ordinary(StagePlan(model=tmp_path))
    assert stage.info.context_length == context
    stage.close()
    assert find_error(tmp_path, model, context) < TOLERANCE


def test_comparison_sees_a_wrong_theta(tmp_path: Path) -> None:
    """What it is all for: the mistake that is easily made changes logits far more than the tolerance."""
    make_model("llama", {"rope_parameters": THETA}, tmp_path / "right")
    wrong = make_model("llama", {"rope_parameters": THETA | {"rope_theta": 10000.0}}, tmp_path / "wrong")
    assert find_error(tmp_path / "right", wrong) > 100 * TOLERANCE


def run_greedy(stage: MlxStage, count: int) -> Sequence[int]:
    seq = SeqId(1)
    stage.edit([Open(seq, SequenceSpec(prompt_length=len(PROMPT), sampling=Sampling(temperature=0)))])
    stage.step(StageBatch((Row(seq, 0, PROMPT[:17]),)))
    row = Row(seq, 17, PROMPT[17:], (Draw(22),))
    output: list[int] = []
    while len(output) < count:
        (answer,) = stage.step(StageBatch((row,))).wait().answers
        assert isinstance(answer, Drawn)
        output += answer.tokens
        row = Row(seq, len(PROMPT) + len(output) - 1, (output[-1],), (Draw(0),))
    return output


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_tokens_are_those_of_transformers(tied: bool, tmp_path: Path) -> None:
    model = make_model("llama", {"rope_parameters": THETA, "tie_word_embeddings": tied}, tmp_path)
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=32, pad_token_id=0)
    with torch.inference_mode():
        prompt = torch.tensor([list(PROMPT)])
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt))[0, len(PROMPT) :].tolist()
    stage = MlxBackend().open_ordinary(StagePlan(model=tmp_path))
    assert run_greedy(stage, 32) == expected
    stage.close()
