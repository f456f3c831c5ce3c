"""Tests of a real model in stages that another engine computes, for the tests that run in the engine's environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from parallax_core.api import Backend, Draw, Drawn, LayerRange, SeqId, StageBatch, StagePlan
from parallax_core.testing.checks.chain import Chain

LAYERS = 30
"""The layers of SmolLM2-135M."""
MARGIN = 1e-3
"""The margin of the best token below which two correct programs may differ; it is printed."""
TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
)


def read_prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the tokens of `PROMPTS`."""
    return [tuple(tokenizer.encode(prompt, add_special_tokens=False).ids) for prompt in PROMPTS]


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


def check_free(chain: Chain) -> None:
    """Check that every page is free."""
    assert chain.free == [(pool.info.num_pages,) for [pool] in chain.pools]


def check_mixed_batch(chain: Chain, prompts: Sequence[tuple[int, ...]]) -> None:
    """Check that requests that join, leave and are aborted give the tokens that they give alone."""
    expected = [generate(chain, prompt) for prompt in prompts]
    running: dict[SeqId, int] = {}
    found: dict[SeqId, list[Drawn]] = {}
    owners: dict[SeqId, int] = {}
    for step in range(2 * TOKENS):
        if step % 3 == 0 and len(owners) < len(prompts):  # one joins while the others run
            number = len(owners)
            seq = chain.open(len(prompts[number]))
            chain.feed(seq, prompts[number][:-1])
            owners[seq], found[seq], running[seq] = number, [], prompts[number][-1]
        for seq, answer in zip(list(running), draw(chain, running), strict=True):
            found[seq].append(answer)
            running[seq] = answer.tokens[0]
            is_aborted = owners[seq] == 1 and len(found[seq]) == 5
            if is_aborted or len(found[seq]) == TOKENS:
                del running[seq]
                chain.drop(seq)
        if not running and len(owners) == len(prompts):
            break
    for seq, number in owners.items():
        check_same(found[seq], expected[number][: len(found[seq])])
    assert [len(found[seq]) for seq in owners] == [TOKENS, 5, TOKENS, TOKENS]


class RealStages:
    """The tests; subclass them under a name that begins with ``Test``, and give the backend and the fixture ``model``.

    Those of a class share the fixture ``whole``, the model in one stage.
    """

    backend: type[Backend]
    options: Mapping[str, Any]
    """Options of the backend that limit the context to 512 tokens."""

    @classmethod
    def open_chain(cls, folder: Path, *cuts: int) -> Chain:
        """Return stages in float32 that begin at layer 0 and at ``cuts``."""
        return Chain(
            [cls.backend().open_stage(cls.make_plan(folder, *bounds)) for bounds in pairwise((0, *cuts, LAYERS))]
        )

    @classmethod
    def make_plan(cls, folder: Path, *bounds: int) -> StagePlan:
        """Return the plan of a stage in float32."""
        return StagePlan(
            model=folder,
            layers=LayerRange(*bounds),
            dtype="float32",
            memory_fraction=0.01,
            max_batch_tokens=256,
            options=cls.options,
        )

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, model: Path) -> list[tuple[int, ...]]:
        return read_prompts(Tokenizer.from_file(str(model / "tokenizer.json")))

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, model: Path) -> Iterator[Chain]:
        with cls.open_chain(model) as chain:
            yield chain

    @pytest.mark.parametrize("cuts", [(15,), (7, 20)])
    def test_stages_equal_the_whole_model(
        self, cuts: tuple[int, ...], model: Path, whole: Chain, prompts: list[tuple[int, ...]]
    ) -> None:
        expected = [generate(whole, prompt) for prompt in prompts]
        with self.open_chain(model, *cuts) as chain:
            assert [stage.info.layers.start for stage in chain.stages] == [0, *cuts]
            assert sum(stage.info.weight_bytes for stage in chain.stages[1:]) < whole.first.weight_bytes
            for prompt, wanted in zip(prompts, expected, strict=True):
                check_same(generate(chain, prompt), wanted)
                check_same(generate(chain, prompt, chunk=3), wanted)
            check_free(chain)

    def test_requests_join_leave_and_are_aborted_without_a_trace(
        self, whole: Chain, prompts: list[tuple[int, ...]]
    ) -> None:
        check_mixed_batch(whole, prompts)
        assert whole.stages[0].step(StageBatch(())).wait().free == whole.free[0]
        check_free(whole)

    def test_cached_prefix_equals_a_recomputed_one(self, whole: Chain, prompts: list[tuple[int, ...]]) -> None:
        text = (prompts[1] * 20)[:200]
        source = whole.open(len(text))
        whole.feed(source, text)
        fork = whole.fork(source, 150)  # full pages are shared, and a part of the next one is copied
        fresh = whole.open(len(text))
        whole.feed(fresh, text[:150])
        for token in prompts[2]:
            cached, computed = draw(whole, {fork: token, fresh: token})
            check_same([cached], [computed])
        whole.drop(source, fork, fresh)
        check_free(whole)

    @pytest.mark.needs_cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    def test_stages_in_bfloat16_on_cuda_equal_the_whole(self, model: Path, prompts: list[tuple[int, ...]]) -> None:
        def run(*cuts: int) -> list[Drawn]:
            stages = [
                self.backend().open_stage(
                    StagePlan(model=model, layers=LayerRange(*bounds), dtype="bfloat16", memory_fraction=0.05)
                )
                for bounds in pairwise((0, *cuts, LAYERS))
            ]
            with Chain(stages) as chain:
                return generate(chain, prompts[0])

        found, expected = run(15), run()
        assert found[0].logprobs == pytest.approx(expected[0].logprobs, abs=0.1)
