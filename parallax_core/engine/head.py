"""The head of a replica: plans the next step of its stages and turns their results into deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as Listing
from dataclasses import asdict, replace

from parallax_core.base.errors import InvalidRequest, Overloaded, StageLost
from parallax_core.base.ids import Epoch, RequestId, SeqId
from parallax_core.contracts.engine import Delta, EngineStats, Request
from parallax_core.contracts.grammar import CompiledGrammar
from parallax_core.contracts.stage import Edit, StageBatch, StageInfo, StageResult
from parallax_core.engine.cache import SequenceCache
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.header_budget import HeaderBudget
from parallax_core.engine.inflight import InflightStep, PlannedStep
from parallax_core.engine.ledger import Ledger
from parallax_core.engine.limits import find_limits
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.pacing import Pacer
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.engine.priority import PriorityQueue
from parallax_core.engine.readiness import Readiness
from parallax_core.engine.replay import Replay
from parallax_core.engine.request import RequestState, find_last
from parallax_core.engine.scheduler import Scheduler, StepBudget
from parallax_core.engine.sequence import RequestContext, Sequence
from parallax_core.engine.stage_clock import MOST_IN_FLIGHT, StageClock
from parallax_core.engine.timing import EngineCounters, Timeline
from parallax_core.engine.validate import RequestValidator
from parallax_core.engine.waiting import WaitingQueue


class Head:
    """Continuous batching with chunked prefill over paged memory; depends only on the calls and times given.

    Decodes come before prefills, the most urgent first; a policy puts prefills in order. Pages are taken step by step;
    when they run out, stored prefixes are dropped, then a policy chooses requests to preempt, which are computed again
    later. So a request that fits alone always ends. `take_deltas` returns what the requests produced.

    (Continuous batching: Orca, OSDI 2022. Paged memory and recomputation: vLLM, SOSP 2023. Chunked prefill mixed with
    decodes: Sarathi-Serve, OSDI 2024.)
    """

    def __init__(self, stages: Listing[StageInfo], decode: Decode, options: HeadOptions | None = None) -> None:
        self._decode = decode
        self._options = options or HeadOptions()
        self._wanted = self._options.limits
        self._requests: dict[RequestId, RequestState] = {}
        self._deadlines: PriorityQueue[RequestState] = PriorityQueue()
        self._readiness = Readiness()
        self._order = self._options.make_order()
        self._num_accepted = 0
        self._deltas: list[tuple[RequestId, Delta]] = []
        self._counters = EngineCounters()
        self.stage_clock = StageClock(len(stages))
        self.epoch = Epoch(0)
        self._begin_epoch(stages)

    @property
    def max_length(self) -> int:
        """The longest sequence that can be served, in tokens, by the model's context length and the pools' memory."""
        return min(self._ledger.capacity, *(stage.context_length for stage in self._stages))

    def accept(self, request: Request, now: float, grammar: CompiledGrammar | None = None) -> None:
        """Accept a request, whose grammar is ``grammar``; without it, a request with a grammar waits for `release`.

        Raises:
            InvalidRequest: if it can never be served.
            Overloaded: if too many requests wait already.
        """
        max_output = RequestValidator(self._stages, self.max_length).check(request)
        if request.id in self._requests:
            raise InvalidRequest(f"request {request.id} has already been accepted")
        self.cache.budget.check_request(request)
        self.check_room()
        self._num_accepted += 1
        timeline = Timeline(now, latest=now)
        context = RequestContext(request=request, max_output=max_output, decode=self._decode, timeline=timeline)
        context.timer, context.number, context.grammar = self._options.timer, self._num_accepted, grammar
        state = RequestState(context)
        if not state.live:
            raise InvalidRequest("the tokens that were delivered leave nothing to generate", "delivered")
        self._requests[request.id] = state
        self._counters.requests_replayed += bool(request.delivered)
        if state.deadline is not None:
            self._deadlines.add(state.deadline, state)
        self._readiness.settle(state.live)

    def release(self, request_id: RequestId, grammar: CompiledGrammar) -> None:
        """Resume a request with its compiled grammar. Does nothing if it has ended."""
        if (state := self._requests.get(request_id)) and state.context.is_held:
            state.context.grammar = grammar
            self._readiness.settle(state.live)

    def refuse(self, request_id: RequestId, message: str) -> None:
        """End a request whose grammar cannot be followed. Does nothing if it has ended."""
        if state := self._requests.get(request_id):
            self._yield(state, state.fail(message, param="grammar"))

    def take_masks(self) -> list[PendingMask]:
        """Return the masks that answers need before their next rows, and that were not returned before."""
        return self._readiness.take_masks()

    def give_mask(self, pending: PendingMask, bits: bytes, now: float) -> None:
        """Resume an answer with its finished mask. Does nothing if it has ended."""
        self._readiness.give_mask(pending, bits, now)

    def check_room(self) -> None:
        """Raise Overloaded if too many requests wait, not counting those that can start with the next step."""
        num_waiting = len(self._requests) - self.cache.num_requests
        num_places = max(0, self.limits.max_running - len(self.cache.running))
        if num_waiting >= num_places + self.limits.max_waiting:
            message = f"{self.cache.num_requests} requests are running and {num_waiting} are waiting already"
            raise Overloaded(message, "try again later")

    def cancel(self, request_id: RequestId) -> None:
        """End a request at any time without a further delta. Does nothing if it has ended."""
        if state := self._requests.get(request_id):
            self._end(state)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a request, when `expire` is to be called, or None."""
        return found[0] if (found := self._deadlines.first()) else None

    def expire(self, now: float) -> None:
        """End the requests whose timeout has passed."""
        while (found := self._deadlines.first()) and found[0] <= now:
            self._yield(found[1], found[1].expire(now))

    def hold_s(self, now: float) -> float:
        """Return the seconds to hold back the next step; 0: it may be planned now."""
        held_s = self.mask_hold_s(now)
        if (view := self._readiness.view(now, len(self._in_flight))) is None:
            return held_s
        return max(held_s, min(self._options.batching.wait_s(view), self._wanted.max_hold_s - view.oldest_wait_s))

    def mask_hold_s(self, now: float) -> float:
        """Return the seconds to hold back the next step, and its deltas, for masks that are about to be made."""
        return self._readiness.hold_s(now)

    def plan(self, now: float) -> PlannedStep | None:
        """Return the next step, or None for now. Results must be absorbed in the order of the steps."""
        sizes = [inflight.times.size for inflight in self._in_flight]
        if not self.stage_clock.may_depart(sizes, len(self.cache.running)) or self.mask_hold_s(now):
            return None
        self.cache.stored.pins.expire(now)
        while True:
            is_held = self.hold_s(now) > 0
            chosen = {} if is_held else self._choose(now)
            edits = self.cache.take_edits()
            if edits or chosen:
                return self._depart(edits, chosen, now)
            if is_held or not self._break_deadlock():
                return None

    def absorb(self, result: StageResult, now: float) -> None:
        """Process the last stage's result of the oldest step in flight.

        Raises:
            StageLost: if no step is in flight, the answers do not fit the step, or the stage's free pages differ from
                the ledger; nothing has changed then.
        """
        if not self._in_flight:
            raise StageLost("the last stage sent a result while no step is in flight")
        inflight = self._in_flight[0]
        inflight.confirm(len(self._stages) - 1, result.free)
        inflight.check(result, self._stages[-1].vocab_size)
        self._absorbed.append(self._in_flight.popleft())
        self.stage_clock.arrive(inflight.times, now, result.sampling_s)
        self._readiness.note_step(now - inflight.times.departed)
        for sequence, answers in inflight.share_out(result.answers):
            if (state := self._find_state(sequence)) is not None:
                num_known = len(state.answers)
                for delta in state.absorb(sequence, answers, result.tensors, now):
                    self._yield(state, delta)
                self._readiness.settle((sequence, *state.answers[num_known:]), now)

    def confirm(
        self, stage: int, step: int, free: tuple[int, ...], seconds: float = 0.0, now: float | None = None
    ) -> None:
        """Process a stage's report on a step of this epoch; reports on steps absorbed long ago are ignored.

        Args:
            stage: the index of the stage, counted from 0.
            step: the number of the step.
            free: its free pages after the step, by pool.
            seconds: how long it computed.
            now: the time at which the report came; None: not known.

        Raises:
            StageLost: if the free pages differ from the ledger.
        """
        for inflight in (*self._absorbed, *self._in_flight):
            if inflight.number == step:
                inflight.confirm(stage, free)
                inflight.note(self.stage_clock, stage, seconds, now)

    def stats(self) -> EngineStats:
        """Return the head's counters, its numbers of requests, and the use of its pools."""
        num, pools = self.cache.num_requests, self._ledger.measure_use()
        return EngineStats(running=num, waiting=len(self._requests) - num, pools=pools, **asdict(self._counters))

    def fail(self, message: str, named: Listing[SeqId] = ()) -> bool:
        """Handle the failure of the oldest step in flight: the requests at fault end, all others go on.

        A single stage is as it was before the step, so the step is undone. Of several stages, some may have computed
        it: everything is computed again in a new epoch.

        Args:
            message: the reason, for the clients.
            named: the sequences of the step that are at fault; empty: all of them.

        Returns:
            Whether the epoch goes on; the next step then reuses the number of the failed one.
        """
        inflight = self._in_flight[0]
        goes_on = bool(inflight.marks) and len(self._in_flight) == 1
        if goes_on:
            self._num_steps = self._in_flight.pop().number - 1
            self.cache.take_back(inflight)
            self._readiness.replace(self._list_live())
        for sequence in inflight.find_faulty(named):
            if (state := self._find_state(sequence)) is not None:
                self.cache.distrust(sequence, is_certain=bool(named))
                self._yield(state, state.fail(message))
        if not goes_on:
            self.restart()
        return goes_on

    def restart(self, stages: Listing[StageInfo] | None = None) -> None:
        """Compute everything again in a new epoch, on empty stages: on ``stages``, if given. No request ends.

        Steps in flight are discarded; every answer continues after its last absorbed token.
        """
        for sequence in self._list_live():
            sequence.restart()
        self.epoch = Epoch(self.epoch + 1)
        if stages:
            self.stage_clock = self.stage_clock.replace(len(stages))
        self._begin_epoch(stages or self._stages)

    def pause(self, now: float, *, is_loss: bool = True) -> None:
        """Note that the stages are opened again, by default after a loss, for which a request may be the cause.

        Plan no step until `resume`; requests can be accepted, expire, fail and be cancelled.
        """
        for state in self._requests.values():
            state.pause(now, is_loss=is_loss)

    def resume(self, stages: Listing[StageInfo], now: float) -> None:
        """Compute every request again on the rebuilt ``stages``; those that these cannot serve end with an error."""
        self.restart(stages)
        replay = Replay(RequestValidator(self._stages, self.max_length), self.cache.budget)
        for state in list(self._requests.values()):
            if obstacle := replay.resume(state, now):
                self._counters.requests_lost += 1
                self._yield(state, state.fail(obstacle))
            elif state.context.timeline.begun is not None:
                self._counters.requests_replayed += 1

    def expire_all(self, message: str, now: float) -> None:
        """End every request as one whose time is over; ``message`` says why."""
        self._counters.requests_lost += len(self._requests)
        for state in list(self._requests.values()):
            self._yield(state, state.expire(now, message))

    def note_lost(self, count: int) -> None:
        """Count requests that the engine itself ended because it was given up after losses."""
        self._counters.requests_lost += count

    def take_deltas(self) -> list[tuple[RequestId, Delta]]:
        """Return the deltas of all requests since the last call, in order."""
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def is_settled(self) -> bool:
        """Whether no step is on its way, and none has to be: the stages hold what the head says they do."""
        return not (self._in_flight or self.cache.has_edits)

    def drop_stored(self) -> None:
        """Drop the stored prefixes, as many as the next step has room to drop."""
        self.cache.drop_stored()

    def check(self) -> None:
        """Check that counters and queues agree with the requests; for tests.

        Raises:
            AssertionError: if it is not.
        """
        self.cache.check(live := self._list_live())
        self._readiness.check(live, self.cache.running)

    def _begin_epoch(self, stages: Listing[StageInfo]) -> None:
        self._stages, self._num_steps = tuple(stages), 0
        self._versions = tuple(stage.weights_version for stage in stages)
        self.limits = find_limits(self._wanted, self._stages)
        self._in_flight: deque[InflightStep] = deque()
        self._absorbed: deque[InflightStep] = deque(maxlen=1 if len(stages) == 1 else MOST_IN_FLIGHT)
        """The last absorbed steps; stages before the last may still report on them."""
        self.stage_clock.restart(self._stages[0].steps_ahead)
        self._pacer = Pacer(self.stage_clock, self._options.target_itl_s)
        self._ledger = Ledger(self._stages)
        budget = HeaderBudget(self._stages, self._wanted.header_bytes, self.limits.max_running)
        self.cache = SequenceCache(self._ledger, budget, WaitingQueue(self._wanted.min_shared), self._space)
        self._readiness.begin_epoch(self.cache.waiting, self._list_live())

    def _space(self, sequence: Sequence) -> Hashable:
        return sequence.request.adapter, self._versions, sequence.request.salt

    def _list_live(self) -> list[Sequence]:
        """Return the answers that can be computed."""
        return [answer for state in self._requests.values() if not state.context.is_held for answer in state.live]

    def _choose(self, now: float) -> dict[Sequence, int]:
        """Plan a step; with several stages, with a share of the decodes, so that every stage has a step to compute."""
        limits, share = self.limits, -(-max(len(self.cache.running), 1) // len(self._stages))
        room = StepBudget(max_tokens=limits.max_batch_tokens, max_decodes=share, max_running=limits.max_running)
        scheduler = Scheduler(self.cache, self._order, self._options.preemption, self._pacer, now)
        chosen = scheduler.choose(room)
        self._counters.preemptions += scheduler.num_preempted
        return chosen

    def _depart(self, edits: tuple[Edit, ...], chosen: dict[Sequence, int], now: float) -> PlannedStep:
        """Apply a step to the ledger and the counters, and add it to the steps in flight."""
        rows = tuple(sequence.make_row(count) for sequence, count in chosen.items())
        marks = self._ledger.save(rows) if len(self._stages) == 1 else ()
        for row in rows:
            self._ledger.extend(row)
        self._counters.steps += 1
        times = self.stage_clock.depart(now, rows, len(self._in_flight))
        for sequence in chosen:
            if sequence.context.timeline.begin(times):
                self._counters.prompt_tokens += sequence.num_prompt
                self._counters.cached_tokens += sequence.num_cached or 0
            self._readiness.note_row(sequence)
            self.cache.note_planned(sequence)
        self._num_steps += 1
        inflight = InflightStep(self._num_steps, rows, tuple(chosen), self._ledger.free, times, marks)
        self._in_flight.append(inflight)
        return PlannedStep(self.epoch, edits, StageBatch(rows, step=self._num_steps), inflight.list_masks())

    def _break_deadlock(self) -> bool:
        """If no step can be planned, preempt an answer of the newest request that holds pages, or fail the request.

        Returns False if a step is in flight, a mask is being made, or there is no request.
        """
        if self._in_flight or self._readiness.is_masking or (last := find_last(self._requests.values())) is None:
            return False
        if len(last.running) > 1:
            self.cache.discard(last.running[-1])
        else:
            self._yield(last, last.fail("out of memory: this conversation does not fit beside the others"))
        return True

    def _yield(self, state: RequestState, delta: Delta) -> None:
        """Emit a delta, and retire its request or answer if that has ended."""
        self._counters.output_tokens += len(delta.tokens)
        if delta.finish is not None:
            if num := self._end(state):
                delta = replace(delta, finish=replace(delta.finish, pinned_tokens=num))
        elif delta.ended is not None:
            self.cache.retire(state.answers[delta.index])
        self._deltas.append((state.request.id, delta))

    def _end(self, state: RequestState) -> int:
        """Remove a request, and retire its answers; return the tokens of its prompt that are pinned."""
        del self._requests[state.request.id]
        self._deadlines.discard(state)
        for answer in state.answers:
            self._readiness.drop(answer)
        return sum(self.cache.retire(answer) for answer in state.answers)

    def _find_state(self, sequence: Sequence) -> RequestState | None:
        """Return the request that a sequence answers, or None if it has ended."""
        state = self._requests.get(sequence.request.id)
        return state if state is not None and state.context is sequence.context else None
