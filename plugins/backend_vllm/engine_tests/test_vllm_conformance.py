"""The kit for engines runs on the real vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer

from parallax_backend_vllm.engine import VllmEngine
from parallax_core.api import Engine
from parallax_core.testing.engine import EngineConformance
from parallax_core.testing.shared_engine import SharedEngine
from parallax_core.testing.token_engine import TextEngine

PROMPTS = ("The capital of France is", "Once upon a time, there was a", "def fibonacci(n):\n    if n", "1, 2, 3, 4,")


class TestVllm(EngineConformance):
    context = 2048
    seed = "engine"
    patience_s = 60.0

    @pytest.fixture(autouse=True)
    def _prepare(self, shared: SharedEngine, tokenizer: Tokenizer, open_engine: Callable[..., VllmEngine]) -> None:
        self.shared, self.tokenizer, self.open_engine = shared, tokenizer, open_engine
        self.prompts = [tuple(tokenizer.encode(prompt).ids) for prompt in PROMPTS]

    def make_engine(self) -> Engine:
        return TextEngine(self.shared.attach(), self.decode)

    def make_broken_engine(self) -> Engine:
        return TextEngine(self.open_engine(max_model_len=10**6), self.decode)

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text
