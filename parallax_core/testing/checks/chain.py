"""Runs several stages as one model, with a head's account of their sequences and pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Self

from parallax_core.api import (
    Answer,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    Open,
    Output,
    PagePool,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StageResult,
    Truncate,
)

GREEDY = Sampling(temperature=0)


class Chain:
    """Runs sequences over stages, first to last; waits for each stage before the next one begins."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.first = stages[0].info
        self.last = stages[-1].info
        self.pools = [[PagePool(pool) for pool in stage.info.pools] for stage in stages]
        self.lengths: dict[SeqId, int] = {}
        self._peaks: dict[SeqId, int] = {}
        self.max_tokens = min(stage.info.max_batch_tokens for stage in stages)
        """The most tokens of a step."""
        self._handles = count(1)
        self._steps = count(1)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every stage."""
        for stage in self.stages:
            stage.close()

    @property
    def free(self) -> list[tuple[int, ...]]:
        """Free pages of each pool of each stage, by the account."""
        return [tuple(pool.num_free for pool in pools) for pools in self.pools]

    @property
    def can_score(self) -> bool:
        """Whether the stages can return log-probabilities."""
        return "logprobs" in self.last.capabilities

    def new_handle(self) -> SeqId:
        """Return an unused handle."""
        return SeqId(next(self._handles))

    def can_rewind(self, seq: SeqId, length: int) -> bool:
        """Whether every pool allows a fork or truncation of ``seq`` at ``length``, from its longest on."""
        behind = self._peaks[seq] - length
        return all(
            pool.can_rewind(seq, length) and (pool.info.kind != "window" or behind <= pool.info.rewind)
            for pools in self.pools
            for pool in pools
        )

    def edit(self, *edits: Edit) -> None:
        """Apply edits to every stage, and then to the account."""
        for stage in self.stages:
            stage.edit(edits)
        for edit in edits:
            self._account(edit)

    def open(self, prompt_length: int = 0, sampling: Sampling = GREEDY, choice: int = 0) -> SeqId:
        """Open a sequence and return its handle."""
        seq = self.new_handle()
        self.edit(Open(seq, SequenceSpec(prompt_length=prompt_length, sampling=sampling), choice))
        return seq

    def fork(self, src: SeqId, length: int, choice: int = 0, spec: SequenceSpec | None = None) -> SeqId:
        """Fork a sequence and return the handle of the fork."""
        dst = self.new_handle()
        self.edit(Fork(src, dst, length, choice, spec))
        return dst

    def drop(self, *seqs: SeqId) -> None:
        """Drop sequences."""
        self.edit(*[Drop(seq) for seq in seqs])

    def step(self, *rows: Row) -> StageResult:
        """Run rows through every stage, account for them, and return the result of the last stage."""
        return self.run(*rows)[-1]

    def run(self, *rows: Row) -> list[StageResult]:
        """Do as `step` does, and return the results of all stages."""
        results: list[StageResult] = []
        number = next(self._steps)
        for stage in self.stages:
            hidden = results[-1].tensors if results else ()
            results.append(stage.step(StageBatch(rows, hidden, step=number)).wait())
        self.account(*rows)
        return results

    def account(self, *rows: Row) -> None:
        """Add the computed rows to the account."""
        for row in rows:
            self.lengths[row.seq] += len(row.tokens)
            self._peaks[row.seq] = max(self._peaks[row.seq], self.lengths[row.seq])
            for pools in self.pools:
                for pool in pools:
                    pool.extend(row.seq, len(row.tokens))

    def row(self, seq: SeqId, tokens: Sequence[int], *outputs: Output) -> Row:
        """Return a row that continues the sequence."""
        return Row(seq, self.lengths[seq], tuple(tokens), outputs)

    def feed(self, seq: SeqId, tokens: Sequence[int], *outputs: Output) -> tuple[Answer, ...]:
        """Append tokens in the largest possible chunks; ``outputs`` are those of the last token, at offset -1."""
        size = self.max_tokens
        last = range(0, len(tokens), size)[-1] if tokens else 0
        for start in range(0, last, size):
            self.step(self.row(seq, tokens[start : start + size]))
        rest = tokens[last:]
        return self.step(self.row(seq, rest, *[place(output, len(rest) - 1) for output in outputs])).answers

    def trace(self, seq: SeqId, tokens: Sequence[int], size: int = 0) -> list[Answer]:
        """Append tokens in chunks of at most ``size``, and return what is drawn after each of them."""
        size = size or self.max_tokens
        answers: list[Answer] = []
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            answers += self.step(self.row(seq, chunk, *self.draws(len(chunk)))).answers
        return answers

    def draws(self, num_tokens: int) -> list[Output]:
        """Return a draw after each token, with the two best tokens if the stage supports that."""
        return [Draw(offset, 1, 2 if self.can_score else -1) for offset in range(num_tokens)]

    def trace_new(self, tokens: Sequence[int], sampling: Sampling = GREEDY, prompt_length: int = 0) -> list[Answer]:
        """Return what is drawn after each of ``tokens`` in a sequence of its own, dropped again."""
        seq = self.open(prompt_length, sampling)
        answers = self.trace(seq, tokens)
        self.drop(seq)
        return answers

    def draw_after(
        self,
        prompt: Sequence[int],
        output: Sequence[int] = (),
        sampling: Sampling = GREEDY,
        *,
        choice: int = 0,
        draw: Draw | None = None,
    ) -> Drawn:
        """Return what is drawn after ``prompt`` and ``output``, in a sequence of its own, dropped again."""
        seq = self.open(len(prompt), sampling, choice)
        (answer,) = self.feed(seq, [*prompt, *output], draw or Draw(-1))
        self.drop(seq)
        assert isinstance(answer, Drawn), f"a draw was answered with {type(answer).__name__}, not Drawn"
        return answer

    def _account(self, edit: Edit) -> None:
        match edit:
            case Open(seq):
                self.lengths[seq] = self._peaks[seq] = 0
            case Fork(src, dst, length):
                self.lengths[dst], self._peaks[dst] = length, self._peaks[src]
            case Truncate(seq, length):
                self.lengths[seq] = length
            case Drop(seq):
                del self.lengths[seq]
        for pools in self.pools:
            for pool in pools:
                pool.edit(edit)


def place(output: Output, offset: int) -> Output:
    """Return the same output at another offset."""
    kind = type(output)
    fields = {name: getattr(output, name) for name in output.__struct_fields__}
    return kind(**fields | {"offset": offset})
