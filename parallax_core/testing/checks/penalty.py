"""Tests penalties, bias and bans through draws that a large bias decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax_core.api import Sampling
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject

FIRST, SECOND, THIRD = 1, 2, 3
"""Tokens with a bias of 2000 and 1000, and another."""
BIAS = ((FIRST, 2000.0), (SECOND, 1000.0))
CLEAR = 0.04
"""By how much one of two tokens leads when a penalty is to turn them around."""
WIDEST = 200.0
"""The most two logits are apart."""


@dataclass(frozen=True, slots=True)
class After:
    """What a sequence holds, and the token that is to be drawn after it."""

    prompt: list[int]
    output: list[int]
    token: int


class PenaltyChecks(StageSubject):
    """Tests the effect of a sequence's history and spec on its draws."""

    def test_presence_penalty_counts_the_output_only(self) -> None:
        """A token of the prompt is not penalised; one of the output is, and once only."""
        sampling = Sampling(temperature=0, logit_bias=BIAS, presence_penalty=1500.0)
        gentle = Sampling(temperature=0, logit_bias=BIAS, presence_penalty=600.0)
        with self.open_whole() as chain:
            self._expect(chain, sampling, After([FIRST, FIRST], [], FIRST), "a presence penalty counts the prompt")
            self._expect(
                chain, sampling, After([THIRD], [FIRST], SECOND), "a presence penalty does not count the output"
            )
            self._expect(chain, gentle, After([THIRD], [FIRST] * 3, FIRST), "a presence penalty counts a token twice")

    def test_frequency_penalty_counts_each_time_in_the_output(self) -> None:
        """The penalty grows with each occurrence of the token in the output; the prompt does not count."""
        sampling = Sampling(temperature=0, logit_bias=BIAS, frequency_penalty=600.0)
        with self.open_whole() as chain:
            self._expect(chain, sampling, After([FIRST] * 3, [], FIRST), "a frequency penalty counts the prompt")
            self._expect(
                chain, sampling, After([FIRST] * 3, [FIRST], FIRST), "a frequency penalty of 600 counts too much"
            )
            self._expect(
                chain, sampling, After([THIRD], [FIRST] * 2, SECOND), "a frequency penalty counts a token once"
            )
            self._expect(
                chain, sampling, After([THIRD], [FIRST, THIRD, FIRST], SECOND), "a frequency penalty looks back one"
            )

    def test_repetition_penalty_counts_prompt_and_output(self) -> None:
        """A token that leads by little is overtaken once it occurs in the prompt or the output."""
        with self.open_whole() as chain:
            for after in (
                After([THIRD, FIRST], [THIRD], SECOND),
                After([THIRD], [FIRST, THIRD], SECOND),
                After([THIRD, THIRD], [THIRD], FIRST),
            ):
                self._check_repetition(chain, after)

    def test_bias_is_added(self) -> None:
        """A large bias decides, the larger of two wins, and it is added after the penalties."""
        with self.open_whole() as chain:
            for token in (0, FIRST, chain.first.vocab_size - 1):
                sampling = Sampling(temperature=0, logit_bias=((token, 1000.0),))
                self._expect(chain, sampling, After([THIRD], [], token), "a bias of 1000 does not decide")
            self._expect(
                chain, Sampling(temperature=0, logit_bias=BIAS), After([THIRD], [], FIRST), "the smaller bias wins"
            )

    def test_bias_of_minus_infinity_forbids(self) -> None:
        """Every token but one is forbidden, and that one is drawn at any temperature."""
        with self.open_whole() as chain:
            for only in (0, 7):
                banned = tuple((token, -math.inf) for token in range(chain.first.vocab_size) if token != only)
                for temperature in (0.0, 1.0, 1e6):
                    sampling = Sampling(temperature=temperature, logit_bias=banned, seed=3)
                    self._expect(chain, sampling, After([THIRD], [], only), "a token forbidden by bias is drawn")

    def test_min_tokens_holds_back_the_stop_tokens(self) -> None:
        """No token of ``stop_ids`` is drawn before the output has that length; the prompt does not count."""
        sampling = Sampling(temperature=0, logit_bias=((FIRST, 3000.0), *BIAS[1:]), min_tokens=2, stop_ids=(FIRST,))
        with self.open_whole() as chain:
            self._expect(chain, sampling, After([THIRD] * 4, [], SECOND), "min_tokens counts the prompt, or is ignored")
            self._expect(chain, sampling, After([THIRD], [THIRD], SECOND), "min_tokens ends one token early")
            self._expect(chain, sampling, After([THIRD], [THIRD] * 2, FIRST), "min_tokens ends one token late")

    def test_penalties_hold_for_chunks_and_decodes(self) -> None:
        """The history counts, whether it arrived at once, in chunks, by draws, or by a fork."""
        sampling = Sampling(temperature=0, logit_bias=BIAS, frequency_penalty=600.0)
        with self.open_whole() as chain:
            seq = chain.open(2, sampling)
            chain.feed(seq, [THIRD])
            found = chain.trace(seq, [FIRST, FIRST, FIRST], 1)
            dst = chain.fork(seq, 4)
            found += chain.trace(dst, [THIRD, SECOND], 1)
            expected = chain.trace_new([THIRD, FIRST, FIRST, FIRST, THIRD, SECOND], sampling, 2)[1:]
            self.compare(found, expected, "penalties depend on how the history came to the stage")

    def _expect(self, chain: Chain, sampling: Sampling, after: After, fault: str) -> None:
        found = chain.draw_after(after.prompt, after.output, sampling).tokens
        assert found == (after.token,), f"{fault}: {found} is drawn instead of {after}, with {sampling}"

    def _check_repetition(self, chain: Chain, after: After) -> None:
        lead = self._find_lead(chain, after)
        bias = ((FIRST, 1000.0), (SECOND, 1000.0 + lead - CLEAR))
        fault = "without a penalty, the bias alone does not decide as it did before"
        self._expect(chain, Sampling(temperature=0, logit_bias=bias), After(after.prompt, after.output, FIRST), fault)
        sampling = Sampling(temperature=0, logit_bias=bias, repetition_penalty=1000.0)
        self._expect(chain, sampling, after, "a repetition penalty counts prompt and output alike, and nothing else")

    def _find_lead(self, chain: Chain, after: After) -> float:
        """Return by how much the logit of the first token is above that of the second, by bisection."""
        low, high = -WIDEST, WIDEST
        while high - low > CLEAR / 4:
            middle = (low + high) / 2
            sampling = Sampling(temperature=0, logit_bias=((FIRST, 1000.0), (SECOND, 1000.0 + middle)))
            if chain.draw_after(after.prompt, after.output, sampling).tokens == (FIRST,):
                low = middle
            else:
                high = middle
        return low
