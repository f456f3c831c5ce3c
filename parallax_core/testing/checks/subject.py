"""The base of the stage tests: opens the author's stages and compares their answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from parallax_core.api import Answer, Drawn, LayerRange, Scored, Stage, StageInfo
from parallax_core.testing.checks.chain import Chain

SMALLEST_STEP = 8
SMALLEST_PAGES = 8
SMALLEST_POOL = 64
MOST_PAGES = 4096


class StageSubject:
    """The model under test; a subclass gives its properties."""

    num_layers: int
    """The number of layers of the whole model."""
    exact: bool = True
    """Whether results do not depend on how tokens are batched: true for integers, not for floats."""
    margin: float = 1e-3
    """The tolerance otherwise: for log-probabilities, and for the two best scores if a token differs."""
    longest: int = 40
    """The most tokens of a sequence. It should exceed two pages, so that faults at page borders are found."""
    splits: tuple[tuple[int, ...], ...] | None = None
    """The ways to split the model, each a tuple of layers; None: every split in two and one in three; (): none."""

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Return a new stage of some layers, or of all: always the same model, with few pages but some."""
        raise NotImplementedError

    def compute_logits(self, tokens: Sequence[int]) -> Sequence[float] | None:  # noqa: ARG002 -- for those who can
        """Return the logits of the token after ``tokens`` by another implementation, or None without one."""
        return None

    def open_whole(self) -> Chain:
        """Return a stage of all layers, after a look at what it says of itself; closes it at the end of a with."""
        stage = self.open_stage(None)
        self._check_sizes(stage.info)
        return Chain([stage])

    def open_parts(self, cuts: Sequence[int]) -> Chain:
        """Return stages that begin at ``cuts``, with the first at layer 0; closes them at the end of a with."""
        bounds = [0, *cuts, self.num_layers]
        return Chain([self.open_stage(LayerRange(*pair)) for pair in pairwise(bounds)])

    def list_splits(self) -> list[tuple[int, ...]]:
        """Return the ways to split the model."""
        if self.splits is not None:
            return list(self.splits)
        twos: list[tuple[int, ...]] = [(cut,) for cut in range(1, self.num_layers)]
        third = self.num_layers // 3
        return [*twos, (third, 2 * third)] if third else twos

    def make_tokens(self, chain: Chain, sequences: int = 1, seed: int = 0) -> tuple[int, ...]:
        """Return as many tokens as each of ``sequences`` sequences may have; the same for the same seed."""
        size = min(self.longest, chain.first.context_length - 1)
        for pools in chain.pools:
            for pool in pools:
                if pool.info.kind != "state":
                    size = min(size, pool.info.num_pages // sequences * pool.info.page_size)
        source = random.Random(seed)  # noqa: S311 -- tokens of a test
        return tuple(source.randrange(chain.first.vocab_size) for _ in range(size))

    def compare(self, found: Sequence[Answer], expected: Sequence[Answer], fault: str) -> None:
        """Fail with ``fault`` unless the answers are the same, or as nearly as they have to be."""
        assert len(found) == len(expected), f"{fault}: {len(found)} answers instead of {len(expected)}"
        for index, pair in enumerate(zip(found, expected, strict=True)):
            problem = self.find_difference(*pair)
            assert not problem, f"{fault}: at answer {index}, {problem}"

    def find_difference(self, found: Answer, expected: Answer) -> str:
        """Return the difference between two answers, or an empty string."""
        if found == expected:
            return ""
        words = f"{found} instead of {expected}"
        if self.exact or type(found) is not type(expected):
            return words
        if isinstance(found, Drawn) and isinstance(expected, Drawn):
            if found.tokens != expected.tokens:
                return "" if self._is_tie(expected, words) else words
            return words if self._is_far(found.logprobs, expected.logprobs) else ""
        assert isinstance(found, Scored)
        assert isinstance(expected, Scored)
        return words if self._is_far([found.logprob], [expected.logprob]) else ""

    def _is_tie(self, expected: Drawn, words: str) -> bool:
        """Whether rounding may decide between the two best tokens of a greedy draw."""
        if len(expected.top) < 2:  # noqa: PLR2004
            return False
        gap = expected.top[0][1] - expected.top[1][1]
        if gap <= self.margin:
            print(f"accepted, for the two best are {gap:.2g} apart: {words}")  # noqa: T201 -- as promised
        return gap <= self.margin

    def _is_far(self, found: Sequence[float], expected: Sequence[float]) -> bool:
        return any(abs(one - other) > self.margin for one, other in zip(found, expected, strict=True))

    def _check_sizes(self, info: StageInfo) -> None:
        layers = LayerRange(0, self.num_layers)
        assert info.layers == layers, f"the info of a stage of the whole model says {info.layers} instead of {layers}"
        assert info.max_batch_tokens >= SMALLEST_STEP, (
            f"open_stage gives a stage of {info.max_batch_tokens} tokens a step; the tests need {SMALLEST_STEP}"
        )
        for pool in info.pools:
            slots = pool.num_pages * (SMALLEST_POOL if pool.kind == "state" else pool.page_size)
            fits = SMALLEST_PAGES <= pool.num_pages <= MOST_PAGES and slots >= SMALLEST_POOL
            assert fits, (
                f"open_stage gives a {pool.kind} pool of {pool.num_pages} pages of {pool.page_size}; the tests need at"
                f" least {SMALLEST_PAGES} and {SMALLEST_POOL} tokens, and fill it, which takes long beyond {MOST_PAGES}"
            )
