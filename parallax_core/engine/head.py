"""The head of a replica: decides what the stages do next, and what their answers mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from parallax_core.base.errors import InvalidRequest, StageLost, Unavailable
from parallax_core.base.ids import Epoch, RequestId
from parallax_core.builtin.batching import WorkConserving
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.contracts.engine import Delta, Request
from parallax_core.contracts.policy import BatchingPolicy, PreemptionPolicy, QueueView
from parallax_core.contracts.stage import Answer, Drawn, Edit, Row, StageBatch, StageInfo, StageResult
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.ledger import Ledger
from parallax_core.engine.scheduler import Scheduler
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a head takes on."""

    max_running: int = 32
    """Requests on the stages at once."""
    max_waiting: int = 256
    """Requests beside them; more are refused."""
    max_hold_s: float = 0.5
    """For how long a batching policy may hold back what could run."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the stages are to do next: edits in order, then the rows of the batch in order; it may have none."""

    epoch: Epoch
    edits: tuple[Edit, ...]
    batch: StageBatch


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight, and what it is for."""

    rows: tuple[Row, ...]
    sequences: tuple[Sequence, ...]
    free: tuple[tuple[int, ...], ...]
    """What every stage will have free after it."""


class Head:
    """Continuous batching with chunked prefill over paged memory, as pure functions of the calls and times given.

    The most urgent requests come first, decodes before prefills. Pages are taken step by step; when they run out, what
    is only stored is dropped, then a policy chooses who gives way, to be computed again later. So whoever fits alone
    always ends. What requests yield is collected, and handed over by `take_deltas`.

    (Continuous batching: Orca, OSDI 2022. Paged memory and recomputation: vLLM, SOSP 2023. Chunked prefill mixed with
    decodes: Sarathi-Serve, OSDI 2024.)
    """

    def __init__(
        self,
        stages: Listing[StageInfo],
        decode: Decode,
        limits: Limits | None = None,
        batching: BatchingPolicy | None = None,
        preemption: PreemptionPolicy | None = None,
    ) -> None:
        self._stages = tuple(stages)
        self._decode = decode
        self._limits = limits or Limits()
        self._batching = batching or WorkConserving()
        self._preemption = preemption or LowestPriority()
        self._max_tokens = min(stage.max_batch_tokens for stage in stages)
        self._max_in_flight = 1 if len(stages) == 1 else len(stages) + 1  # one on its way back
        self._live: dict[RequestId, Sequence] = {}
        self._in_flight: deque[Flight] = deque()
        self._deltas: list[tuple[RequestId, Delta]] = []
        self._num_steps = 0
        self.epoch = Epoch(0)
        self._reset()

    @property
    def max_length(self) -> int:
        """The longest sequence that can be served, in tokens: what the model was made for, or memory if less."""
        return min(self._ledger.capacity, *(stage.context_length for stage in self._stages))

    def accept(self, request: Request, now: float) -> None:
        """Take a request in.

        Raises:
            InvalidRequest: if it can never be served.
            Unavailable: if too many requests wait already.
        """
        max_output = self._max_output(request)
        if request.id in self._live:
            message = f"a request {request.id} is here already"
            raise InvalidRequest(message)
        num_waiting = sum(sequence.seq is None for sequence in self._live.values())
        if num_waiting >= self._limits.max_waiting:
            message = f"{num_waiting} requests are waiting already"
            raise Unavailable(message, "try again later")
        self._live[request.id] = Sequence(request, max_output, self._decode, now, ready_since=now)

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request at any moment; it yields nothing more. Harmless when it has ended."""
        if sequence := self._live.pop(request_id, None):
            self._store.retire(sequence)

    def next_deadline(self) -> float | None:
        """Return when `expire` will have something to do, if nothing else happens before."""
        return min((when for s in self._live.values() if (when := _deadline(s)) is not None), default=None)

    def expire(self, now: float) -> None:
        """End the requests whose time is over."""
        for sequence in list(self._live.values()):
            when = _deadline(sequence)
            if when is not None and when <= now:
                self._yield(sequence, sequence.fail(f"timed out after {sequence.request.timeout_s:g} seconds"))

    def hold_s(self, now: float) -> float:
        """Return for how many seconds the next step is held back; 0: it may be planned now."""
        ready = [sequence.ready_since for sequence in self._live.values() if not sequence.is_drawing]
        if not ready:
            return 0.0
        oldest = now - min(ready)
        view = QueueView(num_ready=len(ready), oldest_wait_s=oldest, num_in_flight=len(self._in_flight))
        return max(0.0, min(self._batching.wait_s(view), self._limits.max_hold_s - oldest))

    def plan(self, now: float) -> Step | None:
        """Return the next step, or None when there is none now; results are absorbed in the order of the steps."""
        if len(self._in_flight) >= self._max_in_flight:
            return None
        chosen = self._choose(now) if self.hold_s(now) == 0 else []
        edits = self._store.take_edits()
        if not edits and not chosen:
            return self.plan(now) if self.hold_s(now) == 0 and self._starve() else None
        rows = tuple(sequence.make_row(count) for sequence, count in chosen)
        for row in rows:
            self._ledger.extend(row)
        for sequence, _ in chosen:
            if sequence.planned >= len(sequence.request.prompt):
                self._store.note_prompt(sequence)
        self._in_flight.append(Flight(rows, tuple(sequence for sequence, _ in chosen), self._ledger.free))
        self._num_steps += 1
        return Step(self.epoch, edits, StageBatch(rows, step=self._num_steps))

    def absorb(self, result: StageResult, now: float) -> None:
        """Take the last stage's result of the oldest step in flight.

        Raises:
            StageLost: if the stage's pages are not what they must be.
        """
        flight = self._in_flight.popleft()
        if result.free and result.free != flight.free[-1]:
            message = f"a stage says it has {result.free} free pages, and must have {flight.free[-1]}"
            raise StageLost(message)
        answers = iter(result.answers)
        for row, sequence in zip(flight.rows, flight.sequences, strict=True):
            for token in [_token_of(next(answers)) for _ in row.outputs]:
                if self._live.get(sequence.request.id) is sequence:
                    sequence.ready_since = now
                    self._yield(sequence, sequence.advance(token))

    def fail(self, message: str) -> None:
        """The oldest step in flight failed: its requests end; all others are computed again, in a new epoch."""
        flight = self._in_flight[0]
        for sequence in flight.sequences:
            if self._live.get(sequence.request.id) is sequence:
                self._yield(sequence, sequence.fail(message))
        self._in_flight.clear()
        for sequence in self._live.values():
            sequence.seq, sequence.planned, sequence.is_drawing = None, 0, False
        self.epoch = Epoch(self.epoch + 1)
        self._reset()

    def take_deltas(self) -> list[tuple[RequestId, Delta]]:
        """Return what requests have yielded since the last call, in order."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def check(self) -> None:
        """Verify the ledger's invariants; for tests."""
        self._ledger.check()

    def _reset(self) -> None:
        self._ledger = Ledger(self._stages)
        self._store = Store(self._ledger, self._space)

    def _space(self, sequence: Sequence) -> Hashable:
        del sequence
        return self._stages[0].weights_version

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

    def _choose(self, now: float) -> list[tuple[Sequence, int]]:
        """Plan a step; with several stages, for a share of the decodes, so that each stage has one to work on."""
        num_running = sum(sequence.seq is not None for sequence in self._live.values())
        share = -(-max(num_running, 1) // len(self._stages))
        scheduler = Scheduler(self._ledger, self._store, self._preemption, now)
        return scheduler.choose(self._live.values(), self._max_tokens, share, self._limits.max_running)

    def _starve(self) -> bool:
        """If nothing runs and nothing can, end whoever came last, of those that hold pages if any does."""
        holders = [sequence for sequence in self._live.values() if sequence.seq is not None]
        is_stuck = bool(self._live) and not self._in_flight
        if is_stuck:
            last = max(reversed(holders or list(self._live.values())), key=lambda sequence: sequence.arrived)
            self._yield(last, last.fail("out of memory for this conversation beside the others"))
        return is_stuck

    def _yield(self, sequence: Sequence, delta: Delta) -> None:
        self._deltas.append((sequence.request.id, delta))
        if delta.finish is not None:
            del self._live[sequence.request.id]
            self._store.retire(sequence)


def _deadline(sequence: Sequence) -> float | None:
    timeout = sequence.request.timeout_s
    return None if timeout is None else sequence.arrived + timeout


def _token_of(answer: Answer) -> int:
    assert isinstance(answer, Drawn)
    return answer.tokens[0]
