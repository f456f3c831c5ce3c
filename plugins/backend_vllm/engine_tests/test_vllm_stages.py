"""The real model in one, two and three stages on the real vLLM gives the same tokens, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from parallax_backend_vllm.backend import VllmBackend
from parallax_core.api import Draw, Drawn, LayerRange, SeqId, StagePlan, Unsupported
from parallax_core.testing.checks.chain import Chain

LAYERS = 30
MARGIN = 1e-3
"""The margin of the best token below which two correct programs may differ; it is printed."""
TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
)
OPTIONS = {"max_model_len": 512, "threads": 1}

pytestmark = pytest.mark.ci


def open_chain(folder: Path, *cuts: int) -> Chain:
    """Return stages that begin at layer 0 and at ``cuts``."""
    return Chain(
        [
            VllmBackend().open_stage(
                StagePlan(
                    model=folder,
                    layers=LayerRange(*bounds),
                    dtype="float32",
                    memory_fraction=0.01,
                    max_batch_tokens=256,
                    options=OPTIONS,
                )
            )
            for bounds in pairwise((0, *cuts, LAYERS))
        ]
    )


@pytest.fixture(scope="module")
def whole(model_folder: Path) -> Iterator[Chain]:
    with open_chain(model_folder) as chain:
        yield chain


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    return [tuple(tokenizer.encode(prompt).ids) for prompt in PROMPTS]


def generate(chain: Chain, prompt: Sequence[int], chunk: int = 256) -> list[Drawn]:
    """Return the greedy answers after a prompt, alone, whose first tokens come in chunks."""
    seq = chain.open(len(prompt))
    for start in range(0, len(prompt) - 1, chunk):
        chain.feed(seq, prompt[start : min(start + chunk, len(prompt) - 1)])
    found, token = list[Drawn](), prompt[-1]
    for _ in range(TOKENS):
        found.append(draw(chain, {seq: token})[0])
        token = found[-1].tokens[0]
    chain.drop(seq)
    return found


def draw(chain: Chain, tokens: dict[SeqId, int]) -> list[Drawn]:
    """Decode one token of each sequence in one step."""
    answers = chain.step(*[chain.row(seq, (token,), Draw(0, top=2)) for seq, token in tokens.items()]).answers
    return [answer for answer in answers if isinstance(answer, Drawn)]


def check_same(found: Sequence[Drawn], expected: Sequence[Drawn]) -> None:
    """Check that the tokens are the same, up to the first near tie, which is printed."""
    for one, other in zip(found, expected, strict=True):
        gap = other.top[0][1] - other.top[1][1]
        if one.tokens != other.tokens and gap < MARGIN:
            print(f"accepted, for the two best are {gap:.2g} apart: {one} instead of {other}")
            return
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=MARGIN)


@pytest.mark.parametrize("cuts", [(15,), (7, 20)])
def test_stages_equal_the_whole(
    cuts: tuple[int, ...], model_folder: Path, whole: Chain, prompts: list[tuple[int, ...]]
) -> None:
    expected = [generate(whole, prompt) for prompt in prompts]
    with open_chain(model_folder, *cuts) as chain:
        for prompt, wanted in zip(prompts, expected, strict=True):
            check_same(generate(chain, prompt), wanted)
            check_same(generate(chain, prompt, chunk=3), wanted)
        assert chain.free == [(pool.info.num_pages,) for [pool] in chain.pools]


def test_requests_join_leave_and_are_aborted_without_a_trace(whole: Chain, prompts: list[tuple[int, ...]]) -> None:
    expected = [generate(whole, prompt) for prompt in prompts]
    running: dict[SeqId, int] = {}
    found: dict[SeqId, list[Drawn]] = {}
    owners: dict[SeqId, int] = {}
    for step in range(2 * TOKENS):
        if step % 3 == 0 and len(owners) < len(prompts):  # one joins, whose prompt is in the step of the others
            number = len(owners)
            seq = whole.open(len(prompts[number]))
            whole.feed(seq, prompts[number][:-1])
            owners[seq], found[seq], running[seq] = number, [], prompts[number][-1]
        for seq, answer in zip(list(running), draw(whole, running), strict=True):
            found[seq].append(answer)
            running[seq] = answer.tokens[0]
            is_aborted = owners[seq] == 1 and len(found[seq]) == 5
            if is_aborted or len(found[seq]) == TOKENS:
                del running[seq]
                whole.drop(seq)
        if not running and len(owners) == len(prompts):
            break
    for seq, number in owners.items():
        check_same(found[seq], expected[number][: len(found[seq])])
    assert [len(found[seq]) for seq in owners] == [TOKENS, 5, TOKENS, TOKENS]
    assert whole.free == [(pool.info.num_pages,) for [pool] in whole.pools]


def test_cached_prefix_equals_a_recomputed_one(whole: Chain, prompts: list[tuple[int, ...]]) -> None:
    text = (prompts[1] * 20)[:200]
    source = whole.open(len(text))
    whole.feed(source, text)
    fork = whole.fork(source, 150)  # a full page is shared, and a part of the next one copied
    fresh = whole.open(len(text))
    whole.feed(fresh, text[:150])
    tokens = prompts[2]
    for token in tokens:
        cached, computed = draw(whole, {fork: token, fresh: token})
        check_same([cached], [computed])
    whole.drop(source, fork, fresh)
    assert whole.free == [(pool.info.num_pages,) for [pool] in whole.pools]


def test_option_of_whole_models_is_refused_by_a_stage(model_folder: Path) -> None:
    plan = StagePlan(model=model_folder, layers=LayerRange(0, 15), options={"tensor_parallel": 2})
    with pytest.raises(Unsupported, match="tensor_parallel"):
        VllmBackend().open_stage(plan)


@pytest.mark.needs_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_stages_in_bfloat16_on_cuda_equal_the_whole(model_folder: Path, prompts: list[tuple[int, ...]]) -> None:
    def run(*cuts: int) -> list[Drawn]:
        stages = [
            VllmBackend().open_stage(
                StagePlan(model=model_folder, layers=LayerRange(*bounds), dtype="bfloat16", memory_fraction=0.05)
            )
            for bounds in pairwise((0, *cuts, LAYERS))
        ]
        with Chain(stages) as chain:
            return generate(chain, prompts[0])

    found, expected = run(15), run()
    assert found[0].logprobs == pytest.approx(expected[0].logprobs, abs=0.1)
