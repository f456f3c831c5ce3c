"""Steps that are planned and not yet absorbed, and what their results must look like."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field

from parallax_core.base.errors import StageLost
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Answer, Draw, Drawn, Output, Row, Score, Scored, State
from parallax_core.engine.sequence import Sequence
from parallax_core.pages.pool import Mark

MOST_SHOWN = 200
"""Letters of an answer that are shown where it is wrong."""
ROUNDING = 0.01
"""So far above 0 rounding may put a log-probability."""

Free = tuple[tuple[int, ...], ...]
"""Free pages: for each stage, of each pool."""


@dataclass(frozen=True, slots=True)
class InflightStep:
    """A step in flight, and what it is for."""

    number: int
    rows: tuple[Row, ...]
    sequences: tuple[Sequence, ...]
    """Those of the rows."""
    free: Free
    """What every stage will have free after it."""
    begun: float = 0.0
    """When it was planned."""
    marks: tuple[Mark, ...] = ()
    """What its sequences held before; none where there is no going back to that."""
    seconds: dict[int, float] = field(default_factory=dict)
    """How long each stage took for it, as far as that is known."""

    @property
    def num_tokens(self) -> int:
        """Tokens each stage computes."""
        return sum([len(row.tokens) for row in self.rows])

    def find_faulty(self, named: Listing[SeqId]) -> list[Sequence]:
        """Return the sequences at fault when the step fails: those ``named``, or all where none of its own is."""
        pairs = list(zip(self.rows, self.sequences, strict=True))
        return [sequence for row, sequence in pairs if row.seq in named] or list(self.sequences)

    def confirm(self, stage: int, free: tuple[int, ...]) -> None:
        """Compare what a stage says it has free after the step; one that says nothing is not asked.

        Raises:
            StageLost: if it is not what it must be.
        """
        if free and free != self.free[stage]:
            expected = self.free[stage]
            message = f"stage {stage} has {free} free pages after step {self.number}, and must have {expected}"
            raise StageLost(message)

    def clock(self, stage: int, seconds: float) -> None:
        """Count the time a stage took for the step to every request in it, once each."""
        self.seconds[stage] = seconds
        for timeline in {id(sequence.context): sequence.context.timeline for sequence in self.sequences}.values():
            timeline.stages[stage] = timeline.stages.get(stage, 0.0) + seconds

    def check(self, answers: tuple[Answer, ...], vocab_size: int) -> None:
        """Compare the answers with what was asked.

        Raises:
            StageLost: if there are too few or too many, or one is of another kind or beyond the vocabulary.
        """
        outputs = [output for row in self.rows for output in row.outputs]
        if len(answers) != len(outputs):
            message = f"the last stage gave {len(answers)} answers to step {self.number}, and must give {len(outputs)}"
            raise StageLost(message)
        for output, answer in zip(outputs, answers, strict=True):
            if not _fits(output, answer, vocab_size):
                said = str(answer)[:MOST_SHOWN]
                raise StageLost(f"the last stage answered {said} in step {self.number} where it was asked {output}")

    def share_out(self, answers: tuple[Answer, ...]) -> Iterator[tuple[Sequence, tuple[Answer, ...]]]:
        """Yield each sequence with the answers to its row."""
        stop = 0
        for row, sequence in zip(self.rows, self.sequences, strict=True):
            start, stop = stop, stop + len(row.outputs)
            yield sequence, answers[start:stop]


def _fits(output: Output, answer: Answer, vocab_size: int) -> bool:
    if isinstance(output, Draw):
        return isinstance(answer, Drawn) and _fits_draw(output, answer, vocab_size)
    if isinstance(output, Score):
        return isinstance(answer, Scored) and len(answer.top) == output.top and _are_sound(answer, vocab_size)
    return isinstance(answer, State)


def _fits_draw(draw: Draw, drawn: Drawn, vocab_size: int) -> bool:
    for token in drawn.tokens:
        if not 0 <= token < vocab_size:
            return False
    if draw.top < 0:
        return len(drawn.tokens) == draw.count and not drawn.logprobs and not drawn.top
    is_whole = len(drawn.tokens) == len(drawn.logprobs) == draw.count and len(drawn.top) == draw.top
    return is_whole and _are_sound(drawn, vocab_size)


def _are_sound(answer: Drawn | Scored, vocab_size: int) -> bool:
    """Whether there can be such log-probabilities, of tokens that there are; NaN is none."""
    own = answer.logprobs if isinstance(answer, Drawn) else (answer.logprob,)
    return all(logprob <= ROUNDING for logprob in own) and all(
        token < vocab_size and logprob <= ROUNDING for token, logprob in answer.top
    )
