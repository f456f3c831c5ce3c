"""The engine kit on the real SGLang, as core serves it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from parallax_backend_sglang.engine import SglangEngine
from parallax_core.testing.engine import EngineConformance
from parallax_core.testing.shared_engine import SharedEngine
from parallax_core.testing.token_engine import TextEngine

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shared(model: Path, open_engine: Callable[..., SglangEngine]) -> Iterator[SharedEngine]:
    """Return an engine that is started once for all tests."""
    engine = SharedEngine(lambda: open_engine(model))
    yield engine
    engine.close()


class TestSglang(EngineConformance):
    prompts = ((504, 3575, 282, 4649, 314), (33, 32, 216, 33), (788, 253, 655, 28, 665, 436, 253, 2708))
    context = 512
    seed = "none"
    patience_s = 300.0

    @pytest.fixture(autouse=True)
    def _prepare(self, model: Path, shared: SharedEngine, open_engine: Callable[..., SglangEngine]) -> Iterator[None]:
        self.shared, self.open_engine = shared, open_engine
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        with tempfile.TemporaryDirectory() as folder:
            self.stranger = Path(folder)
            (self.stranger / "config.json").write_text(json.dumps({"architectures": ["StrangerForCausalLM"]}))
            yield

    def make_engine(self) -> TextEngine:
        return TextEngine(self.shared.attach(), self.decode)

    def make_broken_engine(self) -> TextEngine:
        return TextEngine(self.open_engine(self.stranger), self.decode)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
