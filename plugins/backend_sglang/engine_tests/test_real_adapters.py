"""LoRA adapters of the real SGLang: chosen by request, as merged, and refused without harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from parallax_backend_sglang.backend import SglangBackend
from parallax_core.api import EnginePlan
from parallax_core.testing.shared_engine import SharedEngine
from plugins.backend_sglang.engine_tests.conftest import BASE
from tests.support.engine_adapters import check_merged, check_refusals

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA: adapters of SGLang pin memory"),
]
OPTIONS = {"context_length": 128, "max_total_tokens": 2048, "threads": 1, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(LlamaConfig(**BASE), dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    plan = EnginePlan(model=model, dtype="float32", max_running=8, options=OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLAX_HOME", str(tmp_path_factory.mktemp("home")))
        engine = SharedEngine(lambda: SglangBackend().open_engine(plan))
        yield engine
        engine.close()


def test_tokens_are_those_of_merged_weights_beside_other_adapters(
    adapted: SharedEngine, model: Path, tmp_path: Path
) -> None:
    check_merged(adapted, model, tmp_path)


def test_adapters_that_do_not_fit_are_refused_and_end_nothing(
    adapted: SharedEngine, model: Path, tmp_path: Path
) -> None:
    check_refusals(adapted, model, tmp_path)
