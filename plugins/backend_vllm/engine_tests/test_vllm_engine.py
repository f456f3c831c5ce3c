"""Answers of the real vLLM are those of transformers, and it ends as it should."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterable, Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from parallax_backend_vllm.compat import ENGINE, check_interface, find_moved
from parallax_backend_vllm.engine import VllmEngine
from parallax_core.api import Delta, ParallaxError, Request, RequestId, Sampling
from parallax_core.testing.shared_engine import SharedEngine

PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a small village",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Water boils at a temperature of",
)
TOKENS = 24
NEAR = 1e-3
"""The largest difference of log-probabilities in float32; a token may differ if the two best are as close as this."""
GREEDY = Sampling(temperature=0.0)

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """Return the model in transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def compute_logprobs(reference: Any, tokens: list[int]) -> Any:
    """Return the log-probabilities after each of ``tokens``, of shape (tokens, vocabulary)."""
    import torch

    with torch.no_grad():
        return reference(torch.tensor([tokens])).logits[0].log_softmax(-1)


async def read(stream: AsyncIterable[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


def ask(shared: SharedEngine, prompt: tuple[int, ...], **changes: Any) -> list[Delta]:
    request = Request(**{"id": RequestId(os.urandom(8).hex()), "prompt": prompt, "max_tokens": TOKENS, **changes})

    async def work() -> list[Delta]:
        return await read(shared.engine.submit(request))

    return shared.run(work())


def join(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    shared: SharedEngine, tokenizer: Tokenizer, reference: Any, prompt: str
) -> None:
    tokens = tuple(tokenizer.encode(prompt).ids)
    deltas = ask(shared, tokens, sampling=GREEDY, logprobs=3, prompt_logprobs=0)
    answer = join(deltas)
    expected = compute_logprobs(reference, [*tokens, *answer])
    scores = [entry for delta in deltas for entry in (*delta.prompt_logprobs, *delta.logprobs)]
    assert len(scores) == len(tokens) - 1 + TOKENS
    for place, entry in enumerate(scores):
        row = expected[place]
        assert abs(float(row[entry.token]) - entry.logprob) < NEAR
        for token, logprob in entry.top:
            assert abs(float(row[token]) - logprob) < NEAR
        if place >= len(tokens) - 1:
            assert float(row.max() - row[entry.token]) < NEAR, "not the most probable token"


def test_cached_prompt_is_counted_and_changes_nothing(shared: SharedEngine, tokenizer: Tokenizer) -> None:
    prompt = tuple(tokenizer.encode("A tale of two cities. " * 60).ids)
    before = shared.attach().stats()[0].cached_tokens
    first, second = (ask(shared, prompt, sampling=GREEDY) for _ in range(2))
    assert join(first) == join(second)
    finish = second[-1].finish
    assert finish is not None
    assert finish.cached_tokens > 0
    assert shared.attach().stats()[0].cached_tokens == before + finish.cached_tokens
    other = ask(shared, prompt, sampling=GREEDY, salt="another user")[-1].finish
    assert other is not None
    assert other.cached_tokens == 0


def test_forbidden_token_is_never_drawn(shared: SharedEngine, tokenizer: Tokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPTS[0]).ids)
    [best, *_] = join(ask(shared, prompt, sampling=GREEDY))
    biased = Sampling(temperature=0.0, logit_bias=((best, float("-inf")),))
    assert best not in join(ask(shared, prompt, sampling=biased))


def test_urgent_request_is_served_first(shared: SharedEngine, tokenizer: Tokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPTS[1]).ids)

    async def work() -> list[str]:
        ended: list[str] = []

        async def run(name: str, priority: int) -> None:
            request = Request(id=RequestId(name), prompt=prompt, max_tokens=4, sampling=GREEDY, priority=priority, n=1)
            await read(shared.engine.submit(request))
            ended.append(name)

        crowd = [asyncio.create_task(run(f"crowd-{number}", 5)) for number in range(80)]
        await asyncio.sleep(0)
        await run("urgent", 0)
        place = len(ended)
        await asyncio.gather(*crowd)
        return ended[:place]

    assert len(shared.run(work())) < 80


def test_all_blocks_are_free_after_aborts(shared: SharedEngine, tokenizer: Tokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPTS[0]).ids)

    async def work() -> None:
        streams = [
            shared.engine.submit(
                Request(id=RequestId(f"abort-{number}"), prompt=prompt, max_tokens=500, sampling=GREEDY, n=2)
            )
            for number in range(6)
        ]
        async for _ in streams[0]:
            break
        for stream in streams:
            stream.close()

    shared.run(work())
    ask(shared, prompt, sampling=GREEDY)  # reports the statistics again
    until = time.monotonic() + 20
    while shared.attach().stats()[0].pools[0].used and time.monotonic() < until:
        ask(shared, prompt, sampling=GREEDY, max_tokens=1)
    stats = shared.attach().stats()[0]
    assert (stats.running, stats.waiting, stats.pools[0].used) == (0, 0, 0)


def test_installed_vllm_has_the_interface() -> None:
    check_interface(ENGINE)
    assert list(find_moved({"vllm.v1.engine.async_llm:AsyncLLM.generate": ("telepathy",)})) == [
        "vllm.v1.engine.async_llm:AsyncLLM.generate has no telepathy"
    ]


def test_model_that_is_too_long_is_refused_with_the_option(open_engine: Callable[..., VllmEngine]) -> None:
    with pytest.raises(ParallaxError, match="max_model_len") as refused:
        asyncio.run(open_engine(max_model_len=10**6).start())
    assert "max_model_len" in refused.value.hint


def test_cache_that_is_too_small_is_refused_with_the_option(open_engine: Callable[..., VllmEngine]) -> None:
    with pytest.raises(ParallaxError, match="max seq len") as refused:
        asyncio.run(open_engine(kv_cache_gb=0.02).start())
    assert "kv_cache_gb" in refused.value.hint
