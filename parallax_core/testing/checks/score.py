"""Tests log-probabilities, and with their help every draw against the reference sampler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from parallax_core.api import Draft, Draw, Sampling, Score, Scored, adjust, draw, draw_key, gumbel, hash32, keep
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.golden import read_draft, read_golden, read_logits

ROUNDING = 1e-5
"""The tolerance for rounding of log-probabilities, in addition to the author's."""
SMALLEST_BORDER = 1e-4
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=2.0, top_p=0.4, seed=1),
    Sampling(temperature=1.5, top_k=10, seed=2),
    Sampling(temperature=3.0, top_k=30, top_p=0.7, min_p=0.02, seed=2**63),
    Sampling(temperature=2.0, min_p=0.2, seed=4),
    Sampling(temperature=2.0, presence_penalty=2.0, frequency_penalty=1.0, seed=5),
    Sampling(temperature=0, presence_penalty=-1.5, frequency_penalty=0.5),
    Sampling(temperature=4.0, logit_bias=((3, 6.0), (4, -2.0), (5, 5.5)), seed=6, top_k=20),
    Sampling(temperature=9.0, min_tokens=30, stop_ids=(1, 2, 3, 4, 5, 6, 7, 8, 9), seed=7),
)


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden draw, as a request to a stage."""

    draft: Draft
    logits: list[float]
    token: int


class ScoreChecks(StageSubject):
    """Tests of stages with the capability ``logprobs``, and of their draws."""

    def test_logprobs_are_those_of_raw_logits(self) -> None:
        """Temperature, filters, penalties and bias affect the drawn token, but not the log-probabilities."""
        for chain in self._open_scoring():
            prompt, output = self.make_tokens(chain, 2)[:4], [1, 1]
            plain = self._score_all(chain, prompt, output)
            assert abs(math.fsum(map(math.exp, plain.values())) - 1) < self._slack, "probabilities do not sum to 1"
            for sampling in SAMPLINGS:
                found = self._score_all(chain, prompt, output, sampling)
                apart = max(abs(found[token] - plain[token]) for token in plain)
                assert apart <= self._slack, f"log-probabilities are not those of raw logits with {sampling}"

    def test_top_tokens_come_best_first(self) -> None:
        """``top`` gives the requested number of tokens, best first; the drawn token always has a log-probability."""
        for chain in self._open_scoring():
            prompt = self.make_tokens(chain, 2)[:4]
            everything = self._score_all(chain, prompt)
            order = sorted(everything.values(), reverse=True)
            for num in (0, 1, 5):
                sampling = Sampling(temperature=9.0, seed=num)
                found = chain.draw_after(prompt, (), sampling, draw=Draw(-1, 3, num))
                assert len(found.top) == num, f"Draw(top={num}) gives {len(found.top)} best tokens"
                values = [value for _, value in found.top]
                assert self._agree(values, order[:num]), f"the {num} best tokens are not the best, best first: {found}"
                wanted = [everything[token] for token in found.tokens]
                assert self._agree(found.logprobs, wanted), f"log-probabilities of drawn tokens are wrong: {found}"
            found = chain.draw_after(prompt)
            assert (found.logprobs, found.top) == ((), ()), (
                "log-probabilities are returned although none were requested"
            )

    def test_scores_are_those_of_draws(self) -> None:
        """`Score` returns the same log-probability for a token as ``top`` of a draw at the same offset."""
        for chain in self._open_scoring():
            tokens = self.make_tokens(chain, 4)[:4]
            for offset in range(4):
                everything = self._score_all(chain, tokens[: offset + 1])
                for token in (0, tokens[offset], chain.first.vocab_size - 1):
                    seq = chain.open()
                    (answer,) = chain.step(chain.row(seq, tokens, Score(offset, token, 2))).answers
                    chain.drop(seq)
                    assert isinstance(answer, Scored), f"a score is answered with {answer}"
                    found = [answer.logprob, *[value for _, value in answer.top]]
                    wanted = [everything[token], *sorted(everything.values(), reverse=True)[:2]]
                    assert self._agree(found, wanted), f"Score({offset}, {token}) gives {found} instead of {wanted}"

    def test_draws_are_those_of_the_reference(self) -> None:
        """For many samplings, the drawn token is that of `parallax_core.sampling.reference` for the same logits."""
        for chain in self._open_scoring():
            prompt = self.make_tokens(chain, 4)[:3]
            for output in ([], [1], [5, 1, 5, 3]):
                everything = self._score_all(chain, prompt, output)
                logits = [everything[token] for token in range(chain.first.vocab_size)]
                for sampling in SAMPLINGS:
                    answer = chain.draw_after(prompt, output, sampling, choice=1, draw=Draw(-1, 4))
                    for choice, found in enumerate(answer.tokens, 1):
                        self._check_draw(found, logits, Draft(sampling, prompt, output, choice))

    def test_golden_draws_come_out(self) -> None:
        """With the logits of the golden draws, made by a bias, the tokens are those of the golden draws."""
        for chain in self._open_scoring():
            seen: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, float]] = {}
            for case in self._list_golden(chain):
                prompt, output = case.draft.prompt, case.draft.output
                key = tuple(prompt), tuple(output)
                if key not in seen:
                    seen[key] = self._score_all(chain, prompt, output)
                sampling = shape_logits(case, seen[key])
                found = chain.draw_after(prompt, output, sampling, choice=case.draft.choice).tokens
                assert found == (case.token,), f"{found} is drawn instead of {case.token}: {case.draft}"

    @property
    def _slack(self) -> float:
        return ROUNDING if self.exact else self.margin

    def _open_scoring(self) -> Iterator[Chain]:
        """Yield a stage, if it has log-probabilities; that others refuse them is tested with the errors."""
        with self.open_whole() as chain:
            if chain.can_score:
                yield chain

    def _agree(self, found: Sequence[float], wanted: Sequence[float]) -> bool:
        return len(found) == len(wanted) and all(
            abs(one - other) <= self._slack for one, other in zip(found, wanted, strict=True)
        )

    def _score_all(
        self, chain: Chain, prompt: Sequence[int], output: Sequence[int] = (), sampling: Sampling | None = None
    ) -> dict[int, float]:
        """Return the log-probability of every token."""
        size = chain.first.vocab_size
        found = chain.draw_after(prompt, output, sampling or Sampling(temperature=0), draw=Draw(-1, 1, size))
        scores = dict(found.top)
        assert scores.keys() == set(range(size)), f"Draw(top={size}) gives {len(scores)} of {size} tokens"
        return scores

    def _check_draw(self, found: int, logits: Sequence[float], draft: Draft) -> None:
        expected = draw(logits, draft)
        wrong = found != expected and self._is_clear(logits, draft)
        assert not wrong, f"{found} is drawn instead of {expected} by the reference: {draft}"

    def _is_clear(self, logits: Sequence[float], draft: Draft) -> bool:
        """Return whether rounding cannot change the drawn token."""
        sampling, slack = draft.sampling, self._slack
        scaled = [logit / (sampling.temperature or 1) for logit in adjust(logits, draft)]
        key = draw_key(sampling.seed, draft.position, draft.choice)
        noise = [gumbel(hash32(key, token)) if sampling.temperature else 0.0 for token in range(len(logits))]
        kept = keep(scaled, sampling) if sampling.temperature else range(len(logits))
        scores = sorted((scaled[token] + noise[token] for token in kept), reverse=True)
        moved = [keep(scaled, change) for change in _move_borders(sampling)]
        near = [abs(one - other) for one, other in pairwise(scores)][:1]
        clear = all(gap > 2 * slack for gap in near) and all(list(kept) == other for other in moved)
        if not clear:
            print(f"accepted, for the two best scores are {near} apart, or at the border of a filter: {draft}")  # noqa: T201
        return clear

    def _list_golden(self, chain: Chain) -> list[Golden]:
        room = len(self.make_tokens(chain, 1))
        return [
            Golden(read_draft(case), read_logits(case), case["token"])
            for case in read_golden()["draws"]
            if case["vocab"] <= chain.first.vocab_size and 0 < case["position"] <= room and is_shapeable(case)
        ]


def _move_borders(sampling: Sampling) -> list[Sampling]:
    if not sampling.temperature:
        return []
    return [
        msgspec.structs.replace(
            sampling, top_p=min(1.0, sampling.top_p * change), min_p=min(1.0, sampling.min_p * change)
        )
        for change in (1 - SMALLEST_BORDER, 1 + SMALLEST_BORDER)
        if sampling.top_p < 1 or sampling.min_p
    ]


def is_shapeable(case: Mapping[str, Any]) -> bool:
    """Whether a bias can make the logits of a golden case: no ties that filters see, and nothing that multiplies."""
    given = case["sampling"]
    has_ties = case["logits"][0] != 40503  # noqa: PLR2004 -- the law whose logits are all different
    filters = {"top_k", "top_p", "min_p"} & given.keys()
    return not (has_ties and filters) and "repetition_penalty" not in given and case["margin"] is not None


def shape_logits(case: Golden, scores: Mapping[int, float]) -> Sampling:
    """Return the sampling of a golden case with the bias that makes its logits out of ``scores``."""
    sampling = case.draft.sampling
    given = dict(sampling.logit_bias)
    bias = [
        (token, case.logits[token] - score + given.get(token, 0.0) if token < len(case.logits) else -math.inf)
        for token, score in sorted(scores.items())
    ]
    return msgspec.structs.replace(sampling, logit_bias=tuple(bias))
