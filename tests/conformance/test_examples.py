"""The example packages pass the kits, keep their size, and compute what transformers does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from parallax_backend_numpy.backend import NumpyBackend
from parallax_core.api import Draw, Drawn, ModelSpec, Open, Ref, Row, SeqId, SequenceSpec, StageBatch, StagePlan
from parallax_core.contracts.sample import Sampling
from parallax_core.testing.model import ModelConformance
from tests.conformance.example import EXAMPLES, copy_example, run_pytest
from tests.rules.test_shape import find_code

SIZES = {
    "backend-numpy": 102,
    "deployment-command": 100,
    "dialect-ask": 70,
    "model-olmo2": 80,
    "policy-cached": 40,
    "policy-rush": 85,
    "service-clock": 90,
    "transport-tcp": 210,
}
"""The most lines of code of each package, without its tests, and without the layers that a model may bring."""
BLOCKS = 80
"""The most lines of those."""
LONG = {"backend-numpy", "transport-tcp"}
"""Whose own tests take long, and are run where they are installed."""
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}


def list_sources(name: str) -> list[Path]:
    """Return the modules of an example, without its tests."""
    return sorted(EXAMPLES[name].glob("parallax_*/**/*.py"))


def list_imports(path: Path) -> Iterator[str]:
    """Yield the modules a file imports from core."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "parallax_core":
            yield from (f"parallax_core.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in LONG])
def test_example_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    ran = run_pytest(copy_example(name, tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_keeps_its_size(name: str) -> None:
    lines = {path.name: len(find_code(path.read_text(encoding="utf-8"))) for path in list_sources(name)}
    print(f"{name}: {sum(lines.values())} lines of code, {lines}")
    assert lines.pop("blocks.py", 0) <= BLOCKS
    assert sum(lines.values()) <= SIZES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_imports_the_api_and_nothing_else_of_core(name: str) -> None:
    found = {module for path in list_sources(name) for module in list_imports(path)}
    core = {module for module in found if module.startswith("parallax_core")}
    assert "parallax_core.api" in core
    assert {module for module in core if not module.startswith("parallax_core.api")} == set()


def save_tiny(kind: str, folder: Path, **changes: Any) -> Any:
    """Save a tiny random model with the weights of another seed than any test uses, and return it."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, **(TINY | changes))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("tied", [False, True])
def test_backend_computes_what_transformers_does(tmp_path: Path, tied: bool) -> None:
    model = save_tiny("llama", tmp_path, tie_word_embeddings=tied)
    stage = NumpyBackend().open_stage(StagePlan(model=tmp_path))
    seq, tokens = SeqId(1), (5, 90, 31, 7, 7, 60, 12)
    stage.edit([Open(seq, SequenceSpec(prompt_length=len(tokens), sampling=Sampling(temperature=0)))])
    draws = tuple(Draw(offset, 1, 97) for offset in range(len(tokens)))
    answers = stage.step(StageBatch((Row(seq, 0, tokens, draws),))).wait().answers
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
    for answer, row in zip(answers, expected, strict=True):
        assert isinstance(answer, Drawn)
        assert [score for _, score in sorted(answer.top)] == pytest.approx(row.tolist(), abs=1e-5)


class TestAdapterOnRealCheckpoints(ModelConformance):
    """The adapter weighs what transformers writes."""

    pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    spec: ModelSpec = ModelSpec(
        name="olmo2",
        summary="OLMo 2",
        architectures=("Olmo2ForCausalLM",),
        adapter=Ref("parallax_model_olmo2.adapter:ADAPTER"),
    )
    refused = (("num_attention_heads", -1),)

    def make_checkpoints(self, folder: Path) -> list[Path]:
        for name, changes in {"tied": {"tie_word_embeddings": True}, "biased": {"attention_bias": True}}.items():
            save_tiny("olmo2", folder / name, **changes)
        return [folder / "tied", folder / "biased"]
