"""The real model in one, two and three stages on the real vLLM gives the same tokens, alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_backend_vllm.backend import VllmBackend
from parallax_core.api import LayerRange, StagePlan, Unsupported
from tests.support.real_stages import RealStages

pytestmark = pytest.mark.ci


class TestVllm(RealStages):
    backend = VllmBackend
    options = {"max_model_len": 512, "threads": 1}  # noqa: RUF012 -- as the kits have it


def test_option_of_whole_models_is_refused_by_a_stage(model: Path) -> None:
    plan = StagePlan(model=model, layers=LayerRange(0, 15), options={"tensor_parallel": 2})
    with pytest.raises(Unsupported, match="tensor_parallel"):
        VllmBackend().open_stage(plan)
