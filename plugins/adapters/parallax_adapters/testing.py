"""The kit for stages that take LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from parallax_core.api import (
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    Tensor,
)

PROMPT = (5, 9, 2, 11, 3)
STEPS = 6
Answers = list[tuple[int, float]]
"""Tokens and their log-probabilities."""


class AdapterConformance:
    """Holds stages that take LoRA adapters to their contract.

    Subclass it in a test module under a name that begins with ``Test``, and give the stages of a model with a
    vocabulary of at least 12 tokens, and adapters of it that change its answers.
    """

    close = 2e-3
    """The largest difference of log-probabilities by rounding; adapters must make larger ones."""

    def open_stages(self) -> AbstractContextManager[Sequence[Stage]]:
        """Open the stages of a model, first to last, with the capability ``adapters``."""
        raise NotImplementedError

    def add_adapters(self) -> Sequence[str]:
        """Put at least two adapters into the store of this machine, and return their keys."""
        raise NotImplementedError

    def test_each_adapter_changes_the_answers(self) -> None:
        """No two adapters, and no adapter and none, give the same answers."""
        keys = ["", *self.add_adapters()]
        with self.open_stages() as stages:
            found = [_answer(stages, {1: key})[1] for key in keys]
        for place, one in enumerate(found):
            assert all(_differ(one, other) > self.close for other in found[:place]), f"adapter {place} changes nothing"

    def test_rows_of_a_step_have_their_own_adapters_only(self) -> None:
        """A sequence gets the same beside those with other adapters and without as it gets alone."""
        keys = dict(enumerate(["", *self.add_adapters(), ""], start=1))
        with self.open_stages() as stages:
            alone = {seq: _answer(stages, {seq: key})[seq] for seq, key in keys.items()}
            mixed = _answer(stages, keys)
        for seq in keys:
            assert _differ(mixed[seq], alone[seq]) <= self.close, "a row changes with the adapters of others"

    def test_nothing_of_an_adapter_is_left_after_its_sequences(self) -> None:
        """A sequence without an adapter gets the same after one with an adapter as before it."""
        with self.open_stages() as stages:
            before = _answer(stages, {1: ""})[1]
            for key in self.add_adapters():
                _answer(stages, {1: key})
                assert _differ(_answer(stages, {1: ""})[1], before) <= self.close, "an adapter is left"

    def test_adapter_that_is_missing_ends_its_sequences_alone(self) -> None:
        """A step with an unknown adapter fails, names the sequences that have it, and works without them."""
        with self.open_stages() as stages:
            wanted = _answer(stages, {1: ""}, 1)[1]
            _open(stages[:1], {2: "", 3: "0" * 32})
            rows = [Row(SeqId(seq), 0, PROMPT, (Draw(len(PROMPT) - 1, top=0),)) for seq in (2, 3)]
            named: Sequence[int] = ()
            try:
                stages[0].step(StageBatch(tuple(rows))).wait()
            except BackendFailed as error:
                named = tuple(error.sequences)
            assert named == (3,), "the step must fail, and name the sequences with the missing adapter"
            stages[0].edit([Drop(SeqId(2)), Drop(SeqId(3))])
            assert _differ(_answer(stages, {4: ""}, 1)[4], wanted) <= self.close


def _open(stages: Sequence[Stage], keys: Mapping[int, str]) -> None:
    specs = {
        seq: SequenceSpec(prompt_length=len(PROMPT), sampling=Sampling(temperature=0), adapter=key)
        for seq, key in keys.items()
    }
    for stage in stages:
        stage.edit([Open(SeqId(seq), spec) for seq, spec in specs.items()])


def _answer(stages: Sequence[Stage], keys: Mapping[int, str], steps: int = STEPS) -> dict[int, Answers]:
    """Return the answers of sequences in the same steps, each with the adapter of a key."""
    _open(stages, keys)
    found: dict[int, Answers] = {seq: [] for seq in keys}
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(keys, PROMPT)
    for start in (0, *range(len(PROMPT), len(PROMPT) + steps - 1)):
        rows = tuple(Row(SeqId(seq), start, tokens[seq], (Draw(len(tokens[seq]) - 1, top=0),)) for seq in keys)
        hidden: tuple[Tensor, ...] = ()
        for stage in stages[:-1]:
            hidden = stage.step(StageBatch(rows, hidden)).wait().tensors
        answers = stages[-1].step(StageBatch(rows, hidden)).wait().answers
        for seq, answer in zip(keys, answers, strict=True):
            assert isinstance(answer, Drawn)
            found[seq].append((answer.tokens[0], answer.logprobs[0]))
            tokens[seq] = answer.tokens[:1]
    for stage in stages:
        stage.edit([Drop(SeqId(seq)) for seq in keys])
    return found


def _differ(one: Answers, other: Answers) -> float:
    """Return the largest difference of log-probabilities; infinite if other tokens were drawn."""
    if [token for token, _ in one] != [token for token, _ in other]:
        return float("inf")
    return max(abs(left - right) for (_, left), (_, right) in zip(one, other, strict=True))
