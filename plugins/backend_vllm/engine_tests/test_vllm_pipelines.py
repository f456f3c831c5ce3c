"""``parallax serve --backend vllm --layers 0-15,15-30``: two stages on vLLM, each in a worker process."""

from __future__ import annotations

import pytest

from tests.support.real_server import RealPipeline

pytestmark = pytest.mark.ci


class TestVllm(RealPipeline):
    backend, engine = "vllm", "vLLM"
    options = ("max_model_len=512", "threads=1")
