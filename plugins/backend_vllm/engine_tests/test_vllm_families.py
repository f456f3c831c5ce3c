"""Tiny random models of several families, whole and in two stages, give the log-probabilities of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from vllm import ModelRegistry
from vllm.model_executor.models import interfaces

from parallax_backend_vllm import stage_backend
from parallax_backend_vllm.backend import VllmBackend
from parallax_backend_vllm.families import ABSENT, HYBRID, PLAIN, SEEING
from parallax_core.api import (
    Answer,
    Draw,
    Drawn,
    EnginePlan,
    LayerRange,
    ParallaxError,
    Request,
    RequestId,
    Sampling,
    StagePlan,
)
from parallax_core.testing.checks.chain import Chain

FAMILIES = ("qwen3_moe", "llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""One with experts comes first: vLLM makes the process groups of a process once, those of experts only if needed."""
LAYERS = 4
OPTIONS = {"threads": 1, "block_size": 32}
PROMPT = (5, 9, 61, 33, 2, 17, 80, 44, 3, 3, 71)
TOKENS = 12
NEED_VISION = ("Qwen3_5", "Qwen4Exp")
"""How the names of text models begin whose module imports torchvision, which the environment for CPUs lacks."""
NEAR = 2e-3
"""The largest difference of log-probabilities in float32; a token may differ if the two best are as close as this."""


def open_chain(folder: Path, *cuts: int) -> Chain:
    """Return stages that begin at layer 0 and at ``cuts``."""
    bounds = zip((0, *cuts), (*cuts, LAYERS), strict=True)
    return Chain(
        [
            VllmBackend().open_stage(
                StagePlan(
                    model=folder,
                    layers=LayerRange(start, stop),
                    dtype="float32",
                    options=OPTIONS,
                    max_batch_tokens=32,
                    memory_fraction=0.5,
                )
            )
            for start, stop in bounds
        ]
    )


def generate(chain: Chain) -> list[tuple[int, float]]:
    """Return greedy tokens after `PROMPT` with their log-probabilities."""
    seq, tokens = chain.open(len(PROMPT)), list(PROMPT)
    found = list[tuple[int, float]]()
    for _ in range(TOKENS):
        [answer] = chain.feed(seq, tokens, Draw(-1, top=1))
        found.append(read(answer))
        tokens = [found[-1][0]]
    chain.drop(seq)
    return found


def read(answer: Answer) -> tuple[int, float]:
    assert isinstance(answer, Drawn)
    return answer.tokens[0], answer.logprobs[0]


def check_tokens(folder: Path, found: Sequence[tuple[int, float]]) -> None:
    """Check that each token is the best of transformers, with its log-probability."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = [token for token, _ in found]
    with torch.no_grad():
        scores = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert len(tokens) == TOKENS
    for row, (token, logprob) in zip(scores, found, strict=True):
        assert float(row.max() - row[token]) < NEAR
        assert abs(float(row[token]) - logprob) < NEAR


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("cuts", [(), (LAYERS // 2,)], ids=["whole", "two"])
def test_stages_of_a_family_equal_transformers(
    kind: str, cuts: tuple[int, ...], find_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_backend, "_find_room", lambda _: 2**23)
    with open_chain(find_model(kind), *cuts) as chain:
        found = generate(chain)
        assert chain.free == [(pool.info.num_pages,) for [pool] in chain.pools]
    check_tokens(find_model(kind), found)


@pytest.mark.parametrize("name", sorted(name for name in PLAIN | HYBRID if not name.startswith(NEED_VISION)))
def test_record_of_families_is_that_of_the_registry(name: str) -> None:
    model: Any = ModelRegistry.models[name].load_model_cls()
    assert interfaces.supports_pp(model)
    assert not interfaces.supports_multimodal(model)
    assert interfaces.is_hybrid(model) == (name in HYBRID)


def test_family_that_is_recorded_as_absent_is() -> None:
    known = set(ModelRegistry.get_supported_archs())
    assert not ABSENT & known
    assert known >= SEEING


def test_engine_serves_a_whole_model_of_another_family(find_model: Callable[[str], Path]) -> None:
    folder = find_model("qwen3")
    options = {"kv_cache_gb": 0.1, "threads": 1}

    async def work() -> list[tuple[int, float]]:
        engine = VllmBackend().open_engine(EnginePlan(model=folder, dtype="float32", options=options))
        await engine.start()
        try:
            greedy = Sampling(temperature=0.0)
            stream = engine.submit(
                Request(id=RequestId("a"), prompt=PROMPT, max_tokens=TOKENS, sampling=greedy, logprobs=1)
            )
            return [(entry.token, entry.logprob) async for delta in stream for entry in delta.logprobs]
        finally:
            await engine.stop()

    check_tokens(folder, asyncio.run(work()))


def test_family_with_recurrent_states_is_refused_by_name(find_model: Callable[[str], Path]) -> None:
    with pytest.raises(ParallaxError, match="Qwen3NextForCausalLM"):
        open_chain(find_model("qwen3_next"), LAYERS // 2)
