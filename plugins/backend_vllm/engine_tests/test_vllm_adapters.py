"""LoRA adapters of the real vLLM: chosen by request, as merged, and refused without harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parallax_backend_vllm.backend import VllmBackend
from parallax_core.api import EnginePlan
from parallax_core.testing.shared_engine import SharedEngine
from tests.support.engine_adapters import check_merged, check_refusals

OPTIONS = {"max_model_len": 128, "kv_cache_gb": 1.0, "threads": 1, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def model(find_model: Callable[[str], Path]) -> Path:
    return find_model("llama")


@pytest.fixture(scope="module")
def adapted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    plan = EnginePlan(model=model, dtype="float32", max_running=32, options=OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLAX_HOME", str(tmp_path_factory.mktemp("home")))
        engine = SharedEngine(lambda: VllmBackend().open_engine(plan))
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
