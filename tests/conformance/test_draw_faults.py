"""Each fault in draws and answers is planted into the healthy toy, and the kit is asked whether it sees it."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from parallax_core.api import (
    Answer,
    Draft,
    Draw,
    Drawn,
    Edit,
    Fork,
    Hidden,
    Output,
    Row,
    Sampling,
    Score,
    Scored,
    StageBatch,
    State,
    Tensor,
    Truncate,
    adjust,
    best,
    logprobs,
)
from parallax_core.node.dtypes import convert
from parallax_core.testing.arithmetic import score_tokens
from parallax_core.testing.paged import PagedLayers, States
from parallax_core.testing.toy import ToyStage
from tests.conformance.faulty import Part, find_fault


class Drafting(ToyStage):
    """Changes what is known at a draw."""

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        return [self.change(draft) for draft in super().make_drafts(row, output)]

    def change(self, draft: Draft) -> Draft:
        raise NotImplementedError

    def resample(self, draft: Draft, **changes: Any) -> Draft:
        return replace(draft, sampling=msgspec.structs.replace(draft.sampling, **changes))


class PromptCounted(Drafting):
    """Takes the prompt to be output for the penalties on output."""

    def change(self, draft: Draft) -> Draft:
        return replace(draft, prompt=(), output=(*draft.prompt, *draft.output))


class PromptNotRepeated(Drafting):
    """Lets the repetition penalty count the output only."""

    def change(self, draft: Draft) -> Draft:
        return replace(draft, prompt=[-1] * len(draft.prompt))


class OutputNotRepeated(Drafting):
    """Lets the repetition penalty count the prompt only."""

    def change(self, draft: Draft) -> Draft:
        return replace(draft, output=[-1] * len(draft.output))


class LastTokenForgotten(Drafting):
    """Counts the output up to the step before."""

    def change(self, draft: Draft) -> Draft:
        return replace(draft, output=[*draft.output[:-1], -1]) if draft.output else draft


class CountedOnce(Drafting):
    """Lets a frequency penalty count a token once, however often it comes."""

    def change(self, draft: Draft) -> Draft:
        first = [token if token not in draft.output[:place] else -1 for place, token in enumerate(draft.output)]
        return replace(draft, output=first)


class PresenceCountedTwice(Drafting):
    """Adds the presence penalty to the frequency penalty."""

    def change(self, draft: Draft) -> Draft:
        both = draft.sampling.presence_penalty + draft.sampling.frequency_penalty
        return self.resample(draft, presence_penalty=0.0, frequency_penalty=both)


class BiasIgnored(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, logit_bias=())


class BiasHasABottom(Drafting):
    """Takes minus infinity to be -10."""

    def change(self, draft: Draft) -> Draft:
        bias = tuple((token, max(value, -10.0)) for token, value in draft.sampling.logit_bias)
        return self.resample(draft, logit_bias=bias)


class MinTokensIgnored(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, min_tokens=0)


class MinTokensOffByOne(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, min_tokens=max(0, draft.sampling.min_tokens - 1))


class TopKOffByOne(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, top_k=draft.sampling.top_k + 1 if draft.sampling.top_k else 0)


class TopPIgnored(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, top_p=1.0)


class MinPHalved(Drafting):
    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, min_p=draft.sampling.min_p / 2)


class TemperatureZeroIsSmall(Drafting):
    """Takes temperature 0 to be a very high one."""

    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, temperature=draft.sampling.temperature or 100.0)


class SeedCutShort(Drafting):
    """Keeps 32 bits of a seed."""

    def change(self, draft: Draft) -> Draft:
        return self.resample(draft, seed=draft.sampling.seed % 2**32)


class ChoiceIgnored(Drafting):
    def change(self, draft: Draft) -> Draft:
        return replace(draft, choice=0)


class PositionOffByOne(Drafting):
    """Counts the position of a draw from the last token instead of from the one that is drawn."""

    def change(self, draft: Draft) -> Draft:
        return replace(draft, prompt=draft.prompt[1:]) if draft.prompt else replace(draft, output=draft.output[1:])


class CountDrawsOnce(ToyStage):
    """Draws once and says so several times."""

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        return super().make_drafts(row, output)[:1] * output.count


class FirstRowSamples(ToyStage):
    """Draws for every row of a batch as for the first one."""

    fields: tuple[str, ...] = ("seed",)

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> Any:
        self._first = self.histories[rows[0].seq].spec.sampling if rows else Sampling()
        return super().answer_rows(rows, hidden)

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        given = {name: getattr(self._first, name) for name in self.fields}
        return [
            replace(draft, sampling=msgspec.structs.replace(draft.sampling, **given))
            for draft in super().make_drafts(row, output)
        ]


class FirstRowFilters(FirstRowSamples):
    fields = ("temperature", "top_k", "logit_bias")


class SeedByStep(ToyStage):
    """Mixes the number of steps it has made into every seed."""

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        drafts = super().make_drafts(row, output)
        seeds = [draft.sampling.seed + len(self.batches) for draft in drafts]
        return [
            replace(draft, sampling=msgspec.structs.replace(draft.sampling, seed=seed % 2**64))
            for draft, seed in zip(drafts, seeds, strict=True)
        ]


class ForkForgetsSpec(ToyStage):
    """Lets a fork without a spec be greedy."""

    def apply_edit(self, edit: Edit) -> None:
        super().apply_edit(edit)
        if isinstance(edit, Fork) and not edit.spec:
            history = self.histories[edit.dst]
            history.spec = msgspec.structs.replace(history.spec, sampling=Sampling(temperature=0))


class ForkIgnoresSpec(ToyStage):
    """Keeps the spec of the source whatever a fork says."""

    def apply_edit(self, edit: Edit) -> None:
        super().apply_edit(edit)
        if isinstance(edit, Fork):
            self.histories[edit.dst].spec = self.histories[edit.src].spec


class TruncateKeepsHistory(ToyStage):
    """Counts for penalties what was output before a truncation."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Truncate) and edit.seq in self.histories:
            kept = self.__dict__.setdefault("kept", {})
            kept[edit.seq] = self.histories[edit.seq].tokens[edit.length :]
        super().apply_edit(edit)

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        more = self.__dict__.get("kept", {}).get(row.seq, [])
        return [replace(draft, output=[*draft.output, *more]) for draft in super().make_drafts(row, output)]


class Scoring(ToyStage):
    """Changes log-probabilities."""

    def answer_output(self, row: Row, output: Output, state: int, num_tensors: int) -> Answer:
        answer = super().answer_output(row, output, state, num_tensors)
        if isinstance(output, Hidden):
            return answer
        return self.rescore(row, output, score_tokens(state, self.toy.vocab), answer)

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        raise NotImplementedError


class AdjustedScores(Scoring):
    """Takes log-probabilities after penalties and bias."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if isinstance(output, Score) or output.top < 0:
            return answer  # type: ignore[no-any-return]
        scores = logprobs(adjust(logits, self.make_drafts(row, output)[0]))
        return Drawn(answer.tokens, tuple(scores[token] for token in answer.tokens), best(scores, output.top))


class RawLogits(Scoring):
    """Gives logits for log-probabilities."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if isinstance(output, Score) or output.top < 0:
            return answer  # type: ignore[no-any-return]
        return Drawn(answer.tokens, tuple(logits[token] for token in answer.tokens), best(logits, output.top))


class TopOffByOne(Scoring):
    """Gives one best token too many."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if isinstance(answer, Drawn) and answer.top:
            return Drawn(answer.tokens, answer.logprobs, best(logprobs(logits), len(answer.top) + 1))
        return answer  # type: ignore[no-any-return]


class TopWorstFirst(Scoring):
    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if isinstance(answer, Drawn):
            return Drawn(answer.tokens, answer.logprobs, answer.top[::-1])
        return answer  # type: ignore[no-any-return]


class ScoreOfTheBest(Scoring):
    """Scores the best token instead of the one that was asked for."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        return Scored(max(logprobs(logits)), answer.top) if isinstance(output, Score) else answer


class ProbabilityOfTheFirst(Scoring):
    """Gives the log-probability of the first of several draws for all."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if isinstance(answer, Drawn) and answer.logprobs:
            return Drawn(answer.tokens, answer.logprobs[:1] * len(answer.tokens), answer.top)
        return answer  # type: ignore[no-any-return]


class UnseededNoise(Scoring):
    """Draws from the softmax by the inverse of its sum, as many samplers do."""

    def rescore(self, row: Row, output: Draw | Score, logits: list[float], answer: Any) -> Answer:
        if not isinstance(output, Draw) or not (drafts := self.make_drafts(row, output)):
            return answer  # type: ignore[no-any-return]
        temperature = drafts[0].sampling.temperature
        if not temperature or output.count > 1:
            return answer  # type: ignore[no-any-return]
        weights = [math.exp(score / temperature) for score in logprobs(adjust(logits, drafts[0]))]
        left = (drafts[0].sampling.seed * 2654435761 % 2**32) / 2**32 * sum(weights)
        for token, weight in enumerate(weights):
            left -= weight
            if left <= 0:
                return Drawn((token,), answer.logprobs, answer.top)
        return answer  # type: ignore[no-any-return]


class FirstTensorForAll(ToyStage):
    """Names the first tensor in the answer to every Hidden."""

    def answer_output(self, row: Row, output: Output, state: int, num_tensors: int) -> Answer:
        answer = super().answer_output(row, output, state, num_tensors)
        return State(0) if isinstance(answer, State) else answer


class SumOfTheLastOnly(ToyStage):
    """Gives the state of the last token for a sum."""

    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        return super().show_hidden(Hidden(output.offset), states)


class SumFromTheRowsBeginning(ToyStage):
    """Sums from the first token of the row on, wherever a sum begins."""

    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        return super().show_hidden(Hidden(output.offset, output.offset + 1 if output.summed else 0), states)


class SumInHalfPrecision(ToyStage):
    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        return convert(super().show_hidden(output, states), "float16")


class MeanOfChunks(ToyStage):
    """Gives the mean of the tokens for their sum."""

    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        [total] = struct.unpack("<f", super().show_hidden(output, states).data)
        return Tensor("float32", (1,), struct.pack("<f", total / max(1, output.summed)))


class PositionsIgnored(PagedLayers):
    def run(self, batch: StageBatch) -> States:
        rows = [Row(row.seq, row.start, row.tokens, row.outputs) for row in batch.rows]
        return super().run(replace(batch, rows=tuple(rows)))


class PositionsOfChunksOnly(PagedLayers):
    """Lets the positions of a row of one token be what they are by themselves."""

    def run(self, batch: StageBatch) -> States:
        rows = [
            Row(row.seq, row.start, row.tokens, row.outputs, row.positions if len(row.tokens) > 1 else ())
            for row in batch.rows
        ]
        return super().run(replace(batch, rows=tuple(rows)))


FAULTS: list[tuple[Part, str, str]] = [
    (PromptCounted, "test_presence_penalty_counts_the_output_only", "a presence penalty counts the prompt"),
    (PromptCounted, "test_frequency_penalty_counts_each_time_in_the_output", "a frequency penalty counts the prompt"),
    (PromptCounted, "test_min_tokens_holds_back_the_stop_tokens", "min_tokens counts the prompt"),
    (PromptNotRepeated, "test_repetition_penalty_counts_prompt_and_output", "prompt and output alike"),
    (OutputNotRepeated, "test_repetition_penalty_counts_prompt_and_output", "prompt and output alike"),
    (LastTokenForgotten, "test_presence_penalty_counts_the_output_only", "does not count the output"),
    (CountedOnce, "test_frequency_penalty_counts_each_time_in_the_output", "counts a token once"),
    (PresenceCountedTwice, "test_presence_penalty_counts_the_output_only", "counts a token twice"),
    (BiasIgnored, "test_bias_is_added", "a bias of 1000 does not decide"),
    (BiasHasABottom, "test_bias_of_minus_infinity_forbids", "a token forbidden by bias is drawn"),
    (MinTokensIgnored, "test_min_tokens_holds_back_the_stop_tokens", "or is ignored"),
    (MinTokensOffByOne, "test_min_tokens_holds_back_the_stop_tokens", "ends one token early"),
    (TopKOffByOne, "test_top_k_of_one_takes_the_best", "top_k 1 draws"),
    (TopKOffByOne, "test_top_k_keeps_so_many", "top_k 3 draws"),
    (TopKOffByOne, "test_draws_are_those_of_the_reference", "is drawn instead of"),
    (TopPIgnored, "test_tiny_top_p_and_full_min_p_take_the_best", "top_p=1e-06"),
    (TopPIgnored, "test_draws_are_those_of_the_reference", "is drawn instead of"),
    (MinPHalved, "test_tiny_top_p_and_full_min_p_take_the_best", "min_p=1.0"),
    (TemperatureZeroIsSmall, "test_temperature_zero_does_not_draw", "temperature 0 draws"),
    (SeedCutShort, "test_noise_is_that_of_the_reference", "seed 4294967296, choice 0, position 1"),
    (SeedCutShort, "test_seeds_differ", "seeds 0 to 47244640256 draw only"),
    (SeedCutShort, "test_golden_draws_come_out", "is drawn instead of"),
    (ChoiceIgnored, "test_count_draws_what_forks_with_choices_draw", "choice"),
    (ChoiceIgnored, "test_noise_is_that_of_the_reference", "choice 1, position 1"),
    (PositionOffByOne, "test_noise_is_that_of_the_reference", "seed 0, choice 0, position 1"),
    (CountDrawsOnce, "test_count_draws_what_forks_with_choices_draw", "one draw of four gives"),
    (FirstRowSamples, "test_seed_draws_the_same_in_a_batch", "draw otherwise in a batch than alone"),
    (FirstRowFilters, "test_rows_of_a_batch_have_their_own_sampling", "draw otherwise in a batch than alone"),
    (SeedByStep, "test_draw_depends_on_seed_and_position_only", "depends on more than seed"),
    (ForkForgetsSpec, "test_fork_inherits_the_spec", "does not draw as its source would"),
    (ForkIgnoresSpec, "test_fork_takes_a_spec_of_its_own", "does not draw by it"),
    (TruncateKeepsHistory, "test_truncate_forgets_the_output", "still count for penalties"),
    (AdjustedScores, "test_logprobs_are_those_of_raw_logits", "not those of raw logits with"),
    (RawLogits, "test_logprobs_are_those_of_raw_logits", "do not sum to 1"),
    (TopOffByOne, "test_top_tokens_come_best_first", "Draw(top=1) gives 2 best tokens"),
    (TopWorstFirst, "test_top_tokens_come_best_first", "are not the best, best first"),
    (ScoreOfTheBest, "test_scores_are_those_of_draws", "Score(0, 0) gives"),
    (ProbabilityOfTheFirst, "test_top_tokens_come_best_first", "log-probabilities of drawn tokens are wrong"),
    (UnseededNoise, "test_noise_is_that_of_the_reference", "see parallax_core.sampling.draw"),
    (FirstTensorForAll, "test_hidden_states_are_tensors_of_one_row", "different tokens have the same hidden state"),
    (SumOfTheLastOnly, "test_hidden_states_are_summed_in_float32", "a sum of hidden states begins"),
    (SumFromTheRowsBeginning, "test_hidden_states_are_summed_in_float32", "a sum of hidden states begins"),
    (SumInHalfPrecision, "test_hidden_states_are_summed_in_float32", "is float16, not float32"),
    (MeanOfChunks, "test_hidden_states_of_chunks_sum_to_those_of_the_whole", "the sums of chunks add up to"),
    (PositionsIgnored, "test_positions_that_are_given_count", "the given positions are ignored"),
    (PositionsOfChunksOnly, "test_positions_that_are_given_count", "count otherwise in chunks of 1"),
]


@pytest.mark.parametrize(("part", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(part: Part, test: str, words: str) -> None:
    assert words in find_fault(part, test)
