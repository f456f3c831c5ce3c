"""The real SGLang with a real model: tokens, fields, batches, aborts, crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, Qwen3Config

from parallax_backend_sglang.engine import SglangEngine
from parallax_core.api import Delta, Finish, ParallaxError, Request, RequestId, Sampling

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
)
TOKENS = 24
FREE_S = 20.0
NUMBERS = count()
Open = Callable[..., SglangEngine]


class Client:
    """Asks an engine; each request has an id of its own."""

    def __init__(self, engine: SglangEngine) -> None:
        self.engine = engine

    def make(self, prompt: tuple[int, ...], **changes: Any) -> Request:
        fields: dict[str, Any] = {"max_tokens": 16, "sampling": Sampling(temperature=0.0), **changes}
        return Request(id=RequestId(f"test-{next(NUMBERS)}"), prompt=prompt, **fields)

    async def read(self, prompt: tuple[int, ...], **changes: Any) -> list[Delta]:
        return [delta async for delta in self.engine.submit(self.make(prompt, **changes))]

    async def ask(self, prompt: tuple[int, ...], **changes: Any) -> list[int]:
        return [token for delta in await self.read(prompt, **changes) for token in delta.tokens]


def get_finish(deltas: list[Delta]) -> Finish:
    assert deltas[-1].finish is not None
    return deltas[-1].finish


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path, open_engine: Open) -> AsyncIterator[Client]:
    """Return a client of an engine that the tests of this module share."""
    engine = open_engine(model)
    await engine.start()
    yield Client(engine)
    await engine.stop()


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS]


def generate(model: Path, prompts: list[tuple[int, ...]], count: int = TOKENS) -> list[list[int]]:
    """Return the greedy tokens of transformers in float32."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    reference.generation_config = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
    with torch.inference_mode():
        found = [reference.generate(torch.tensor([prompt]))[0].tolist() for prompt in prompts]
    return [tokens[len(prompt) :] for tokens, prompt in zip(found, prompts, strict=True)]


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return generate(model, prompts)


async def wait_free(engine: SglangEngine) -> None:
    """Wait until no request runs and no slot that is not stored is in use."""
    async with asyncio.timeout(FREE_S):
        while True:
            [stats] = engine.stats()
            if not stats.running and not stats.waiting and not stats.pools[0].used:
                return
            await asyncio.sleep(0.1)


async def test_greedy_tokens_are_those_of_transformers(
    client: Client, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    assert [await client.ask(prompt, max_tokens=TOKENS) for prompt in prompts] == expected


async def test_requests_join_leave_and_are_aborted_without_changing_others(
    client: Client, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    aborted = client.engine.submit(client.make(prompts[0][::-1], max_tokens=300))
    first = asyncio.create_task(client.ask(prompts[0], max_tokens=TOKENS))
    async for _ in aborted:
        break
    later = [asyncio.create_task(client.ask(prompt, max_tokens=TOKENS)) for prompt in prompts[1:]]
    short = await client.ask(prompts[1], max_tokens=3)
    aborted.close()
    assert short == expected[1][:3]
    assert [await first, *(await asyncio.gather(*later))] == expected
    await wait_free(client.engine)


async def test_stored_prefix_gives_the_tokens_of_a_computed_one(
    client: Client, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    await client.ask(prompts[1], max_tokens=TOKENS)
    stored = await client.read(prompts[1], max_tokens=TOKENS)
    salted = await client.read(prompts[1], max_tokens=TOKENS, salt="another")
    for deltas in (stored, salted):
        assert [token for delta in deltas for token in delta.tokens] == expected[1]
    assert get_finish(stored).cached_tokens == len(prompts[1]) - 1
    assert stored[0].cached_tokens == len(prompts[1]) - 1
    assert get_finish(salted).cached_tokens == 0


@pytest.mark.parametrize("others", [frozenset[int](), frozenset({2})])
async def test_answer_ends_at_its_stop_ids_and_at_no_other_token(
    client: Client, prompts: list[tuple[int, ...]], expected: list[list[int]], others: frozenset[int]
) -> None:
    last = expected[0][2]
    deltas = await client.read(prompts[0], max_tokens=TOKENS, stop_ids=frozenset({last, *others}))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert tokens == expected[0][: expected[0].index(last) + 1]
    assert get_finish(deltas).reason == "stop"
    await wait_free(client.engine)


async def test_end_of_sequence_that_is_no_stop_id_does_not_end_an_answer(
    client: Client, prompts: list[tuple[int, ...]]
) -> None:
    forced = Sampling(temperature=0.0, logit_bias=((2, 1000.0),))
    assert await client.ask(prompts[0], max_tokens=4, sampling=forced) == [2] * 4
    assert await client.ask(prompts[0], max_tokens=4, sampling=forced, stop_ids=frozenset({2})) == [2]


async def test_sampling_fields_are_honoured(
    client: Client, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    prompt, best = prompts[0], expected[0]
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert await client.ask(prompt, max_tokens=8, sampling=Sampling(temperature=1.5, **options)) == best[:8]
    banned = Sampling(temperature=0.0, logit_bias=((best[0], -float("inf")),))
    assert best[0] not in await client.ask(prompt, max_tokens=8, sampling=banned)
    plain = await client.ask(prompts[3], max_tokens=TOKENS)
    assert len(set(plain)) < len(plain)
    for penalties in ((2.0, 0.0), (0.0, 2.0)):
        sampling = Sampling(temperature=0.0, presence_penalty=penalties[0], frequency_penalty=penalties[1])
        spread = await client.ask(prompts[3], max_tokens=TOKENS, sampling=sampling)
        assert len(set(spread)) > len(set(plain))


async def test_logprobs_are_those_before_the_temperature(
    client: Client, model: Path, prompts: list[tuple[int, ...]]
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sampling = Sampling(temperature=0.7)
    deltas = await client.read(prompts[0], max_tokens=6, sampling=sampling, logprobs=3, prompt_logprobs=2)
    tokens = [*prompts[0], *(token for delta in deltas for token in delta.tokens)]
    with torch.inference_mode():
        truth = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    entries = [*deltas[0].prompt_logprobs, *(entry for delta in deltas for entry in delta.logprobs)]
    assert [entry.token for entry in entries] == tokens[1:]
    for place, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(truth[place, entry.token]), abs=1e-3)
        assert len(entry.top) == (2 if place < len(prompts[0]) - 1 else 3)
        for token, logprob in entry.top:
            assert logprob == pytest.approx(float(truth[place, token]), abs=1e-3)


async def test_urgent_request_is_served_before_those_that_wait(client: Client, prompts: list[tuple[int, ...]]) -> None:
    ends: dict[str, float] = {}

    async def ask(name: str, priority: int, length: int) -> None:
        await client.ask(prompts[0], max_tokens=length, priority=priority)
        ends[name] = time.monotonic()

    running = [asyncio.create_task(ask(f"running {number}", 0, 40)) for number in range(8)]
    await asyncio.sleep(0.5)
    waiting = [asyncio.create_task(ask(f"waiting {number}", 5, 24)) for number in range(8)]
    await asyncio.sleep(0.2)
    await asyncio.gather(ask("urgent", -5, 2), *running, *waiting)
    assert ends["urgent"] < min(end for name, end in ends.items() if name.startswith("waiting"))


async def test_longest_sequence_is_the_one_that_is_stated(client: Client, prompts: list[tuple[int, ...]]) -> None:
    length = client.engine.info.context_length
    prompt = (prompts[1] * 100)[: length - 1]
    deltas = await client.read(prompt, max_tokens=1)
    assert (get_finish(deltas).reason, get_finish(deltas).output_tokens) == ("length", 1)
    deltas = await client.read(prompts[0], max_tokens=length - len(prompts[0]))
    assert get_finish(deltas).output_tokens == length - len(prompts[0])


CONFIGS = {
    "qwen3": Qwen3Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
async def test_further_family_gives_the_tokens_of_transformers(family: str, tmp_path: Path, open_engine: Open) -> None:
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(CONFIGS[family], dtype=torch.float32).save_pretrained(tmp_path)
    prompts = [(5, 9, 2, 60), tuple(range(3, 40))]
    other = open_engine(tmp_path)
    await other.start()
    try:
        found = [await Client(other).ask(prompt, max_tokens=12) for prompt in prompts]
    finally:
        await other.stop()
    assert found == generate(tmp_path, prompts, 12)


async def test_family_that_sglang_does_not_have_is_refused(tmp_path: Path, open_engine: Open) -> None:
    AutoModelForCausalLM.from_config(
        LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ).save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config.replace("LlamaForCausalLM", "StrangerForCausalLM"), encoding="utf-8")
    other = open_engine(tmp_path)
    with pytest.raises(ParallaxError, match="StrangerForCausalLM"):
        await other.start()
    assert other.health().state == "failed"


@pytest.mark.parametrize("victim", ["sglang::sched", "sglang::detok", "parallax_backend_sglang.child"])
async def test_killed_process_ends_requests_and_leaves_no_process(
    model: Path, prompts: list[tuple[int, ...]], victim: str, open_engine: Open
) -> None:
    other = open_engine(model)
    await other.start()
    assert other._child is not None
    child = psutil.Process(other._child._process.pid)
    family = [child, *child.children(recursive=True)]
    asking = [asyncio.create_task(Client(other).read(prompt, max_tokens=400)) for prompt in prompts]
    await asyncio.sleep(1)
    [target] = [each for each in family if victim in " ".join(each.cmdline())]
    os.kill(target.pid, signal.SIGKILL)
    for deltas in await asyncio.wait_for(asyncio.gather(*asking), 60):
        assert get_finish(deltas).reason == "error"
        assert get_finish(deltas).message
    assert other.health().state == "failed"
    await other.stop()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
