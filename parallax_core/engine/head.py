"""The head of a replica: decides what the stage does next, and what its answers mean."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count

from parallax_core.base.errors import InvalidRequest, Unavailable
from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Delta, Request
from parallax_core.contracts.stage import (
    Answer,
    Drawn,
    Drop,
    Edit,
    Open,
    Row,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
)
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.ledger import Ledger
from parallax_core.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """What the stage is to do next: edits in order, then a batch, which may have no rows."""

    edits: tuple[Edit, ...]
    batch: StageBatch


class Head:
    """First come, first served, with chunked prefill: decodes go first, the rest of the budget goes to prompts.

    A request is admitted when the pages it can ever need are free, so an admitted request always finishes.
    Requests are named by the handle `accept` returned.
    """

    def __init__(self, info: StageInfo, decode: Decode, max_running: int = 32, max_waiting: int = 256) -> None:
        self._info = info
        self._decode = decode
        self._max_running = min(max_running, info.max_batch_tokens)
        self._max_waiting = max_waiting
        self._ledger = Ledger(info.pools[0])
        self._seqs = count()
        self._waiting: deque[Sequence] = deque()
        self._running: dict[SeqId, Sequence] = {}
        self._drops: list[Drop] = []
        self._in_flight: tuple[Row, ...] = ()

    @property
    def max_length(self) -> int:
        """The longest sequence that can be served, in tokens: what the model was made for, or memory if less."""
        return min(self._info.context_length, self._ledger.capacity)

    def accept(self, request: Request) -> SeqId:
        """Take a request in, and return its handle.

        Raises:
            InvalidRequest: if it can never be served.
            Unavailable: if too many requests wait already.
        """
        max_output = self._max_output(request)
        if len(self._waiting) >= self._max_waiting:
            message = f"{len(self._waiting)} requests are waiting already"
            raise Unavailable(message, "try again later")
        seq = SeqId(next(self._seqs))
        self._waiting.append(Sequence(request, seq, max_output, self._decode))
        return seq

    def cancel(self, seq: SeqId) -> None:
        """Forget a request at any moment; it yields nothing more. Harmless when it has ended."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.seq != seq)
        if seq in self._running:
            self._retire(seq)

    def plan(self) -> Step | None:
        """Return the next step, or None when there is nothing to do. `absorb` or `abandon` must follow."""
        edits: list[Edit] = [*self._drops, *self._admit()]
        self._drops.clear()
        self._in_flight = self._choose_rows()
        if not edits and not self._in_flight:
            return None
        return Step(tuple(edits), StageBatch(self._in_flight))

    def absorb(self, result: StageResult) -> list[tuple[SeqId, Delta]]:
        """Take the result of the step last planned, and return what its requests yield."""
        deltas = []
        answers = iter(result.answers)
        for row in self._in_flight:
            tokens = [_token_of(next(answers)) for _ in row.outputs]
            sequence = self._running.get(row.seq)
            if sequence is None:  # cancelled while the step ran
                continue
            sequence.computed += len(row.tokens)
            deltas += [(row.seq, sequence.advance(token)) for token in tokens]
        self._in_flight = ()
        self._retire_finished(deltas)
        return deltas

    def abandon(self, message: str) -> list[tuple[SeqId, Delta]]:
        """The step last planned failed: end the requests it was for with an error."""
        rows, self._in_flight = self._in_flight, ()
        deltas = [(row.seq, self._running[row.seq].fail(message)) for row in rows if row.seq in self._running]
        self._retire_finished(deltas)
        return deltas

    def _max_output(self, request: Request) -> int:
        room = self.max_length - len(request.prompt)
        if not request.prompt:
            message = "the prompt is empty"
            raise InvalidRequest(message, "messages")
        if room < 1:
            message = f"the prompt has {len(request.prompt)} tokens; this model can hold {self.max_length} in all"
            raise InvalidRequest(message, "messages", "shorten the conversation")
        if request.max_tokens is not None and request.max_tokens > room:
            message = (
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} new ones are more than "
                f"the {self.max_length} tokens this model can hold"
            )
            raise InvalidRequest(message, "max_tokens", f"ask for at most {room}, or leave it out")
        return room if request.max_tokens is None else request.max_tokens

    def _admit(self) -> list[Open]:
        opened = []
        while self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            length = len(sequence.request.prompt) + sequence.max_output
            if not self._ledger.can_reserve(length):
                break
            self._waiting.popleft()
            self._ledger.reserve(sequence.seq, length)
            self._running[sequence.seq] = sequence
            spec = SequenceSpec(prompt_length=len(sequence.request.prompt), sampling=sequence.request.sampling)
            opened.append(Open(sequence.seq, spec))
        return opened

    def _choose_rows(self) -> tuple[Row, ...]:
        budget = self._info.max_batch_tokens
        rows = []
        for sequence in sorted(self._running.values(), key=_is_prefill):
            if budget == 0:
                break
            row = sequence.next_row(budget)
            budget -= len(row.tokens)
            rows.append(row)
        return tuple(rows)

    def _retire_finished(self, deltas: list[tuple[SeqId, Delta]]) -> None:
        for seq, delta in deltas:
            if delta.finish is not None:
                self._retire(seq)

    def _retire(self, seq: SeqId) -> None:
        del self._running[seq]
        self._ledger.release(seq)
        self._drops.append(Drop(seq))


def _token_of(answer: Answer) -> int:
    assert isinstance(answer, Drawn)
    return answer.tokens[0]


def _is_prefill(sequence: Sequence) -> bool:
    return len(sequence.tokens) - sequence.computed > 1
