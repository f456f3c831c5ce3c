"""What a stage answers: draws of several choices, penalties over the history, log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.drafts import list_drafts
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.stage import MlxStage
from parallax_backend_mlx.tensors import read_tensor
from parallax_core.api import (
    Answer,
    Draft,
    Draw,
    Drawn,
    Drop,
    Entry,
    Fork,
    Hidden,
    LayerRange,
    Open,
    Output,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    Span,
    StageBatch,
    StagePlan,
    State,
    Truncate,
    Unsupported,
    best,
    draw,
    logprobs,
)

PROMPT = tuple((5 * n * n + n + 2) % 97 for n in range(24))
HOT = Sampling(temperature=5, seed=31)
ONE, TWO, THREE = SeqId(1), SeqId(2), SeqId(3)


@pytest.fixture(scope="module")
def shared(llama: Path) -> Iterator[MlxStage]:
    stage = MlxBackend().open_ordinary(StagePlan(model=llama))
    yield stage
    stage.close()


@pytest.fixture
def stage(shared: MlxStage) -> Iterator[MlxStage]:
    yield shared
    shared.edit([Drop(seq) for seq in list(shared.account.entries)])


def make_spec(sampling: Sampling, prompt_length: int = len(PROMPT)) -> SequenceSpec:
    return SequenceSpec(prompt_length=prompt_length, sampling=sampling)


def ask(stage: MlxStage, seq: SeqId, tokens: Sequence[int], *outputs: Output) -> tuple[Answer, ...]:
    """Run one row and return its answers."""
    start = len(stage.account.entries[seq].tokens)
    return stage.step(StageBatch((Row(seq, start, tuple(tokens), outputs),))).wait().answers


def draw_next(stage: MlxStage, seq: SeqId, tokens: Sequence[int]) -> int:
    """Run one row and return the token drawn after it."""
    (answer,) = ask(stage, seq, tokens, Draw(len(tokens) - 1))
    assert isinstance(answer, Drawn)
    return answer.tokens[0]


def generate(stage: MlxStage, seq: SeqId, prompt: Sequence[int], count: int) -> list[int]:
    """Return ``count`` tokens after ``prompt``, each drawn in a step of its own."""
    output = [draw_next(stage, seq, prompt)]
    while len(output) < count:
        output.append(draw_next(stage, seq, output[-1:]))
    return output


@pytest.fixture(scope="module")
def network(llama: Path) -> Network:
    network = Network(load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)[0])
    network.install_pick()
    return network


def find_logits(network: Network, tokens: Sequence[int]) -> list[float]:
    """Return the raw logits after ``tokens``, by mlx-lm alone."""
    logits: Any = network.run_tokens(tokens, network.make_cache(), [len(tokens) - 1])[0].tolist()
    return list(logits)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(temperature=0, repetition_penalty=1.5),
        Sampling(temperature=0, frequency_penalty=1.5, presence_penalty=2.0),
        Sampling(temperature=2, seed=3, min_p=0.02, repetition_penalty=1.3, logit_bias=((4, 3.0), (9, -math.inf))),
        Sampling(temperature=0, min_tokens=9, stop_ids=tuple(range(40))),
    ],
    ids=str,
)
def test_stage_draws_what_the_reference_draws_from_its_logits(
    stage: MlxStage, network: Network, sampling: Sampling
) -> None:
    stage.edit([Open(ONE, make_spec(sampling), 2)])
    output = generate(stage, ONE, PROMPT, 16)
    for count, token in enumerate(output):
        logits = find_logits(network, [*PROMPT, *output[:count]])
        assert draw(logits, Draft(sampling, PROMPT, output[:count], 2)) == token


@pytest.mark.parametrize(
    ("fields", "after_prompt", "after_output"),
    [
        ({}, True, True),
        ({"presence_penalty": 2000.0}, True, False),
        ({"frequency_penalty": 2000.0}, True, False),
        ({"min_tokens": 6, "stop_ids": (PROMPT[10],)}, False, True),
    ],
)
def test_prompt_is_no_output(stage: MlxStage, fields: dict[str, Any], after_prompt: bool, after_output: bool) -> None:
    """A token far ahead of all others is drawn or not, as it and those after it are of the prompt or the output."""
    sampling = Sampling(temperature=0, logit_bias=((PROMPT[10], 1000.0),), **fields)
    for length, expected in ((len(PROMPT), after_prompt), (4, after_output)):
        stage.edit([Open(ONE, make_spec(sampling, length))])
        assert (draw_next(stage, ONE, PROMPT) == PROMPT[10]) == expected
        stage.edit([Drop(ONE)])


def test_several_draws_are_those_of_the_choices(stage: MlxStage) -> None:
    stage.edit([Open(ONE, make_spec(HOT), 3)])
    ask(stage, ONE, PROMPT[:-1])
    stage.edit([Fork(ONE, SeqId(10 + choice), len(PROMPT) - 1, choice) for choice in range(9)])
    expected = [draw_next(stage, SeqId(10 + choice), PROMPT[-1:]) for choice in range(9)]
    assert len(set(expected)) > 4
    assert ask(stage, ONE, PROMPT[-1:], Draw(0, 6)) == (Drawn(tuple(expected[3:])),)


def test_fork_draws_as_the_sequence_opened_with_its_choice(stage: MlxStage) -> None:
    stage.edit([Open(ONE, make_spec(HOT)), Open(TWO, make_spec(HOT), 7)])
    ask(stage, ONE, PROMPT[:20])
    stage.edit([Fork(ONE, THREE, 20, 7)])
    drawn = generate(stage, TWO, PROMPT, 8)
    assert generate(stage, THREE, PROMPT[20:], 8) == drawn
    assert generate(stage, ONE, PROMPT[20:], 8) != drawn


def test_fork_may_replace_the_spec_but_not_the_adapter(stage: MlxStage) -> None:
    stage.edit([Open(ONE, make_spec(HOT))])
    ask(stage, ONE, PROMPT[:20])
    with pytest.raises(ValueError, match="adapter"):
        stage.edit([Fork(ONE, TWO, 20, 0, SequenceSpec(prompt_length=24, sampling=HOT, adapter="poet"))])
    other = Sampling(temperature=5, seed=32)
    stage.edit([Fork(ONE, TWO, 20, 0, make_spec(other)), Open(THREE, make_spec(other))])
    replaced = generate(stage, TWO, PROMPT[20:], 8)
    assert replaced == generate(stage, THREE, PROMPT, 8)
    assert replaced != generate(stage, ONE, PROMPT[20:], 8)


def test_history_follows_truncation(stage: MlxStage) -> None:
    sampling = Sampling(temperature=0, frequency_penalty=1, repetition_penalty=1.2)
    stage.edit([Open(ONE, make_spec(sampling)), Open(TWO, make_spec(sampling))])
    expected = generate(stage, TWO, PROMPT, 10)
    generate(stage, ONE, PROMPT, 3)
    ask(stage, ONE, [*expected] * 3)
    stage.edit([Truncate(ONE, len(PROMPT) + 2)])
    assert generate(stage, ONE, expected[2:3], 7) == expected[3:]


def test_draws_within_one_row_know_only_what_is_before_them(stage: MlxStage) -> None:
    """As when drafted tokens are verified: each place has a history of its own."""
    sampling = Sampling(temperature=0, frequency_penalty=1.5, min_tokens=5, stop_ids=(3, 4))
    stage.edit([Open(ONE, make_spec(sampling)), Open(TWO, make_spec(sampling))])
    expected = generate(stage, ONE, PROMPT, 9)
    ask(stage, TWO, PROMPT[:-1])
    answers = ask(stage, TWO, [PROMPT[-1], *expected[:-1]], *(Draw(offset) for offset in range(9)))
    assert answers == tuple(Drawn((token,)) for token in expected)


def test_logprobs_are_those_of_the_raw_logits(stage: MlxStage, network: Network) -> None:
    sampling = Sampling(temperature=0.5, top_k=3, seed=8, repetition_penalty=2, logit_bias=((5, 4.0),))
    stage.edit([Open(ONE, make_spec(sampling)), Open(TWO, make_spec(sampling))])
    outputs: list[Score | Draw] = [
        Score(3, 17),
        Draw(9, 3, 2),
        Score(9, 5, 4),
        Draw(9),
        Draw(23, 1, 0),
        Draw(23, 1, 97),
    ]
    answers = ask(stage, ONE, PROMPT, *outputs)
    for output, answer in zip(outputs, answers, strict=True):
        expected = logprobs(find_logits(network, PROMPT[: output.offset + 1]))
        top = best(expected, max(0, output.top))
        if isinstance(answer, Scored):
            assert isinstance(output, Score)
            assert answer.logprob == pytest.approx(expected[output.token], abs=1e-4)
        else:
            assert isinstance(answer, Drawn)
            assert isinstance(output, Draw)
            wanted = answer.tokens if output.top >= 0 else ()
            assert answer.logprobs == pytest.approx([expected[token] for token in wanted], abs=1e-4)
            assert len(answer.tokens) == output.count
        assert [token for token, _ in answer.top] == [token for token, _ in top]
        assert [value for _, value in answer.top] == pytest.approx([value for _, value in top], abs=1e-4)


def test_scores_alone_are_answered(stage: MlxStage, network: Network) -> None:
    stage.edit([Open(ONE, make_spec(HOT))])
    answers = ask(stage, ONE, PROMPT, *(Score(offset, PROMPT[offset + 1]) for offset in range(23)))
    found = [answer.logprob for answer in answers if isinstance(answer, Scored)]
    expected = [logprobs(find_logits(network, PROMPT[: at + 1]))[PROMPT[at + 1]] for at in range(23)]
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row(ONE, 0, (1, 2), positions=(4, 9)), "positions"),
        (Row(ONE, 0, (1, 2), spans=(Span(0, 1, 0),)), "embeddings"),
    ],
)
def test_what_no_capability_names_is_refused_before_anything_runs(stage: MlxStage, row: Row, words: str) -> None:
    stage.edit([Open(ONE, make_spec(HOT)), Open(TWO, make_spec(HOT))])
    with pytest.raises(Unsupported, match=words):
        stage.step(StageBatch((Row(TWO, 0, PROMPT), row)))
    assert stage.account.entries[TWO].tokens == []


def test_hidden_states_are_those_the_head_is_given(stage: MlxStage, network: Network) -> None:
    stage.edit([Open(ONE, make_spec(HOT)), Open(TWO, make_spec(HOT))])
    rows = (
        Row(ONE, 0, PROMPT, (Hidden(3), Draw(9), Hidden(23))),
        Row(TWO, 0, PROMPT[:7], (Hidden(6), Score(6, 5))),
    )
    result = stage.step(StageBatch(rows)).wait()
    assert [type(answer) for answer in result.answers] == [State, Drawn, State, State, Scored]
    assert result.sampling_s > 0
    assert [answer.tensor for answer in result.answers if isinstance(answer, State)] == [0, 1, 2]
    for tensor, length in zip(result.tensors, (4, 24, 7), strict=True):
        network.run_tokens(PROMPT[:length], network.make_cache(), [length - 1])
        assert network.states is not None
        assert tensor.shape == (32,)
        assert mx.allclose(read_tensor(tensor), network.states[0], atol=1e-4).item()


def test_hidden_states_are_summed_beside_others(stage: MlxStage) -> None:
    stage.edit([Open(seq, make_spec(HOT)) for seq in (ONE, TWO)])
    row = Row(ONE, 0, PROMPT, tuple(map(Hidden, range(24))))
    states = [read_tensor(tensor) for tensor in stage.step(StageBatch((row,))).wait().tensors]
    stage.edit([Drop(ONE), Open(THREE, make_spec(HOT))])
    rows = (
        Row(TWO, 0, PROMPT[:7], (Hidden(6, 7), Draw(6))),
        Row(THREE, 0, PROMPT, (Hidden(3), Hidden(9, 4), Draw(23), Hidden(23, 24))),
    )
    found = [read_tensor(tensor) for tensor in stage.step(StageBatch(rows)).wait().tensors]
    expected = [mx.stack(part).sum(axis=0) for part in (states[:7], states[3:4], states[6:10], states)]
    for sums, right in zip(found, expected, strict=True):
        assert sums.dtype == mx.float32
        assert mx.allclose(sums, right, atol=1e-4).item()


def test_first_layers_let_rows_pass_that_ask_the_last_for_more(stage: MlxStage, llama: Path) -> None:
    row = Row(ONE, 0, PROMPT, (Hidden(3), Score(5, 7), Draw(9, top=2)))
    stage.edit([Open(ONE, make_spec(HOT))])
    expected = stage.step(StageBatch((row,))).wait()
    plans = [StagePlan(model=llama, layers=layers) for layers in (LayerRange(0, 1), LayerRange(1, 3))]
    first, last = [MlxBackend().open_ordinary(plan) for plan in plans]
    for part in (first, last):
        part.edit([Open(ONE, make_spec(HOT))])
    between = first.step(StageBatch((row,))).wait()
    found = last.step(StageBatch((row,), between.tensors)).wait()
    assert between.answers == ()
    assert [type(answer) for answer in found.answers] == [State, Scored, Drawn]
    assert mx.allclose(read_tensor(found.tensors[0]), read_tensor(expected.tensors[0]), atol=1e-4).item()
    first.close()
    last.close()


def test_draft_has_the_tokens_before_its_draw() -> None:
    entry = Entry(make_spec(HOT, 3), 2, [10, 11, 12, 13, 14, 15])
    row = Row(ONE, 1, (11, 12, 13, 14, 15), (Draw(0), Score(1, 5), Draw(3, 2)))
    drafts = list(list_drafts(row, entry))
    assert [(list(draft.prompt), list(draft.output)) for draft in drafts] == [
        ([10, 11], []),
        ([10, 11, 12], [13, 14]),
        ([10, 11, 12], [13, 14]),
    ]
    assert [draft.choice for draft in drafts] == [2, 2, 3]
    assert [draft.position for draft in drafts] == [2, 5, 5]
    assert (drafts[1].output[0], drafts[1].output[-1], drafts[1].prompt[1:]) == (13, 14, [11, 12])
    with pytest.raises(IndexError):
        drafts[0].prompt[2]
