"""Steps that are planned and not yet absorbed, and the checks of their results."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from parallax_core.base.errors import StageLost
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts.stage import (
    Answer,
    Draw,
    Drawn,
    Edit,
    Hidden,
    Row,
    Score,
    Scored,
    StageBatch,
    StageResult,
    State,
)
from parallax_core.contracts.tensor import FLOATS, Tensor
from parallax_core.engine.pending_mask import StepMask
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.stage_clock import StageClock, StepTimes
from parallax_core.pages.pool import Mark

MOST_SHOWN = 200
"""The most characters of a wrong answer that an error message shows."""
ROUNDING = 0.01
"""The largest log-probability accepted as rounded from 0."""

Free = tuple[tuple[int, ...], ...]
"""Free pages by stage, then by pool."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step for the stages: apply the edits in order, then compute the rows of the batch, which may be empty.

    `StageBatch.step` is its number, counted from 1 in each epoch.
    """

    epoch: Epoch
    edits: tuple[Edit, ...]
    batch: StageBatch
    masks: tuple[StepMask, ...] = ()
    """The masks of its draws."""


@dataclass(frozen=True, slots=True)
class InflightStep:
    """A step in flight, and the sequences it computes."""

    number: int
    rows: tuple[Row, ...]
    sequences: tuple[Sequence, ...]
    """The sequences of the rows, in their order."""
    free: Free
    """The free pages of every stage after the step."""
    times: StepTimes
    marks: tuple[Mark, ...] = ()
    """The pages its sequences held before it, by pool; empty if the step cannot be undone."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the step."""
        return sum([len(row.tokens) for row in self.rows])

    def find_faulty(self, named: Listing[SeqId]) -> list[Sequence]:
        """Return the sequences at fault for a failure: those ``named``, or all if no sequence of the step is named."""
        pairs = list(zip(self.rows, self.sequences, strict=True))
        return [sequence for row, sequence in pairs if row.seq in named] or list(self.sequences)

    def confirm(self, stage: int, free: tuple[int, ...]) -> None:
        """Compare a stage's free pages after the step with the ledger's; an empty report is not compared.

        Raises:
            StageLost: if they differ.
        """
        if free and free != self.free[stage]:
            expected = self.free[stage]
            message = f"stage {stage} has {free} free pages after step {self.number}; it must have {expected}"
            raise StageLost(message)

    def note(self, clock: StageClock, stage: int, seconds: float, now: float | None) -> None:
        """Record how long a stage computed the step, as reported at ``now``; None: not known."""
        self.times.note(stage, seconds)
        if self.rows:
            clock.note(self.times, stage, self.num_tokens, now)

    def check(self, result: StageResult, vocab_size: int) -> None:
        """Compare the answers of the last stage with the outputs of the rows.

        Raises:
            StageLost: if their number or the kind of one is wrong, a token is outside the vocabulary, or a hidden state
                is not there.
        """
        answers, tensors = result.answers, result.tensors
        pairs = zip(self.rows, self.sequences, strict=True)
        outputs = [(output, sequence) for row, sequence in pairs for output in row.outputs]
        if len(answers) != len(outputs):
            message = f"the last stage sent {len(answers)} answers to step {self.number}; it must send {len(outputs)}"
            raise StageLost(message)
        for (output, sequence), answer in zip(outputs, answers, strict=True):
            if isinstance(output, Hidden):
                is_fit = _fits_state(answer, tensors, sequence)
            else:
                is_fit = _fits(output, answer, vocab_size)
            if not is_fit:
                shown = str(answer)[:MOST_SHOWN]
                raise StageLost(f"the last stage answered {shown} to {output} in step {self.number}")

    def list_masks(self) -> tuple[StepMask, ...]:
        """Return the masks of the draws of the step."""
        return tuple(
            StepMask(index, place, sequence.mask or b"")
            for index, (row, sequence) in enumerate(zip(self.rows, self.sequences, strict=True))
            for place, output in enumerate(row.outputs)
            if isinstance(output, Draw) and output.masked
        )

    def share_out(self, answers: tuple[Answer, ...]) -> Iterator[tuple[Sequence, tuple[Answer, ...]]]:
        """Yield each sequence with the answers to its row."""
        stop = 0
        for row, sequence in zip(self.rows, self.sequences, strict=True):
            start, stop = stop, stop + len(row.outputs)
            yield sequence, answers[start:stop]


def _fits_state(answer: Answer, tensors: Listing[Tensor], sequence: Sequence) -> bool:
    if not isinstance(answer, State) or answer.tensor >= len(tensors):
        return False
    tensor, embedding = tensors[answer.tensor], sequence.embedding
    return tensor.dtype in FLOATS and len(tensor.shape) == 1 and (embedding is None or embedding.fits(tensor))


def _fits(output: Draw | Score, answer: Answer, vocab_size: int) -> bool:
    if isinstance(output, Draw):
        return isinstance(answer, Drawn) and _fits_draw(output, answer, vocab_size)
    return isinstance(answer, Scored) and len(answer.top) == output.top and _are_sound(answer, vocab_size)


def _fits_draw(draw: Draw, drawn: Drawn, vocab_size: int) -> bool:
    for token in drawn.tokens:
        if not 0 <= token < vocab_size:
            return False
    if draw.top < 0:
        return len(drawn.tokens) == draw.count and not drawn.logprobs and not drawn.top
    is_whole = len(drawn.tokens) == len(drawn.logprobs) == draw.count and len(drawn.top) == draw.top
    return is_whole and _are_sound(drawn, vocab_size)


def _are_sound(answer: Drawn | Scored, vocab_size: int) -> bool:
    """Return whether the log-probabilities are at most 0 and not NaN, and the top tokens are in the vocabulary."""
    own = answer.logprobs if isinstance(answer, Drawn) else (answer.logprob,)
    return all(logprob <= ROUNDING for logprob in own) and all(
        token < vocab_size and logprob <= ROUNDING for token, logprob in answer.top
    )
