"""Runs a head and its stages step by step on a simulated clock."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest

from parallax_core.api import (
    Delta,
    Drop,
    Fork,
    LayerRange,
    Open,
    Request,
    RequestId,
    Sampling,
    SeqId,
    StageBatch,
    StageResult,
    Tensor,
    TokenLogprob,
    best,
    logprobs,
)
from parallax_core.engine.cache import SequenceCache
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.ledger import Ledger
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.engine.request import RequestState
from parallax_core.engine.waiting import WaitingQueue
from parallax_core.testing.masks import GivenMasks
from parallax_core.testing.paged import show_state
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Result
from parallax_core.wire.messages import Step as StepMessage
from tests.support.grammars import SumCompiler, expect_answer

TOY = Toy()
LUCKY = Sampling(temperature=1.0, seed=5)
NUMBERS = count()
NOBODY = RequestId("")


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(prompt: Sequence[int], max_tokens: int | None = 4, **fields: Any) -> Request:
    fields = {"sampling": GREEDY, **fields}
    return Request(id=RequestId(str(next(NUMBERS))), prompt=tuple(prompt), max_tokens=max_tokens, **fields)


def open_stages(toy: Toy, num_stages: int, **sizes: Any) -> list[ToyStage]:
    """Return ``num_stages`` stages with about equal numbers of layers."""
    borders = [round(index * len(toy.layers) / num_stages) for index in range(num_stages + 1)]
    return [toy.open(LayerRange(*pair), **sizes) for pair in pairwise(borders)]


def expect_tokens(toy: Toy, request: Request, choice: int = 0, length: int | None = None) -> list[int]:
    """Return the expected tokens of an answer, computed by the plain model."""
    num_tokens = length or request.max_tokens
    assert num_tokens is not None
    if request.grammar is not None:
        return expect_answer(toy, request.prompt, request.grammar, request.sampling, choice)[:num_tokens]
    tokens = toy.continuation(request.prompt, num_tokens, request.sampling, choice)
    ends = [place for place, token in enumerate(tokens, 1) if token in request.stop_ids]
    return tokens[: ends[0]] if ends else tokens


def expect_logprobs(toy: Toy, tokens: Sequence[int], start: int, top: int) -> list[TokenLogprob]:
    """Return the expected log-probabilities of ``tokens`` from ``start`` on."""
    found = [logprobs(toy.logits(tokens[:place])) for place in range(start, len(tokens))]
    return [
        TokenLogprob(token, each[token], best(each, top)) for token, each in zip(tokens[start:], found, strict=True)
    ]


def expect_embedding(toy: Toy, request: Request) -> Any:
    """Return the expected embedding of a prompt, computed by the plain model, to be compared with `read_numbers`."""
    states = [read_numbers(show_state(state))[0] for state in toy.states(request.prompt)]
    match request.pooling:
        case "last":
            return states[-1:]
        case "mean":
            return pytest.approx([sum(states) / len(states)], rel=1e-6)
    return None


def read_numbers(tensor: Tensor) -> list[float]:
    return list(struct.unpack(f"<{tensor.shape[0]}f", tensor.data))


def number_masks(step: PlannedStep) -> GivenMasks:
    """Return the masks of a step as its last stage gets them: by the numbers of its outputs."""
    places = [(index, place) for index, row in enumerate(step.batch.rows) for place in range(len(row.outputs))]
    bits = {places.index((row, output)): bits for row, output, bits in step.masks}
    return GivenMasks({number: Tensor("uint8", (len(each),), each) for number, each in bits.items()})


class Chain:
    """A sequence of stages, each of which gets the output of the previous one."""

    def __init__(self, stages: Sequence[ToyStage]) -> None:
        self.stages = stages
        self.epoch = 0
        self.largest_header = 0
        """The bytes of the largest header so far, of messages to and from stages."""
        self._open: dict[SeqId, None] = {}

    def run(self, step: PlannedStep) -> list[StageResult]:
        """Run a step and return each stage's result; a new epoch starts with empty stages."""
        edits = step.edits
        batch = replace(step.batch, masks=number_masks(step) if step.batch.rows and step.masks else None)
        if step.epoch > self.epoch:
            self.epoch = step.epoch
            edits = (*map(Drop, self._open), *edits)
        results: list[StageResult] = []
        for stage in self.stages:
            stage.edit(edits)
            hidden = results[-1].tensors if results else ()
            results.append(stage.step(replace(batch, hidden=hidden)).wait() if step.batch.rows else StageResult())
            sent = StepMessage(step.epoch, step.batch.step, step.edits, step.batch.rows, hidden)
            answered = Result(step.epoch, step.batch.step, 0, results[-1].answers, stage.free, 0.5)
            self.largest_header = max(self.largest_header, *(len(encode(each).header) for each in (sent, answered)))
        for edit in edits:
            match edit:
                case Open(seq) | Fork(_, seq):
                    self._open[seq] = None
                case Drop(seq):
                    del self._open[seq]
        return results


START = 1000.0
"""When a replica begins, by its clock."""


class Replica:
    """A head with stages of the toy, its requests and their deltas."""

    def __init__(self, *stages: ToyStage, **options: Any) -> None:
        self.stages = stages or (TOY.open(),)
        self.stage = self.stages[-1]
        self.toy = self.stage.toy
        self.chain = Chain(self.stages)
        options = {"limits": Limits(max_running=32), **options}
        self.head = Head([stage.info for stage in self.stages], decode, HeadOptions(**options))
        self.now = START
        self.token_s = 0.0
        """The seconds of each token of a step, on every stage, as these report; 0: they report none."""
        self.requests: dict[RequestId, Request] = {}
        self.deltas: dict[RequestId, list[Delta]] = {}
        self.masks: list[PendingMask] = []
        """Masks that answers wait for."""

    @property
    def cache(self) -> SequenceCache:
        """What the stages hold by the head's account; what tests change in it would take long to come about."""
        return self.head.cache

    @property
    def ledger(self) -> Ledger:
        """The head's account of the stages' pages."""
        return self.head._ledger

    @property
    def states(self) -> Mapping[RequestId, RequestState]:
        """The requests that have not ended."""
        return self.head._requests

    @property
    def queue(self) -> WaitingQueue:
        """The answers that wait for the stages."""
        return self.head.cache.waiting

    def submit(self, request: Request, *, is_held: bool = False) -> RequestId:
        """Submit a request; if ``is_held``, its grammar is compiled later."""
        grammar = None if request.grammar is None or is_held else SumCompiler().compile(request.grammar)
        self.head.accept(request, self.now, grammar)
        self.requests[request.id] = request
        self.deltas[request.id] = []
        return request.id

    def ask(self, prompt: Sequence[int], max_tokens: int | None = 4, **fields: Any) -> RequestId:
        return self.submit(make_request(prompt, max_tokens, **fields))

    def give_masks(self, most: int | None = None) -> None:
        """Make the masks that answers wait for, or ``most`` of them."""
        self.masks += self.head.take_masks()
        made, self.masks = self.masks[:most], self.masks[len(self.masks[:most]) :]
        for pending in made:
            bits = pending.make()
            assert not pending.note(0.0)
            self.head.give_mask(pending, bits, self.now)

    def step(self) -> bool:
        """Make the masks that answers wait for, and run one step; return whether one was planned."""
        self.now += 0.01
        self.give_masks()
        step = self.head.plan(self.now)
        if step is not None:
            self.head.absorb(self.compute(step), self.now)
        self.collect()
        return step is not None

    def fail(self, *named: SeqId) -> PlannedStep:
        """Make the next step fail on a single stage, after its edits and before its rows; return the step."""
        step = self.head.plan(self.now)
        assert step is not None
        self.chain.run(replace(step, batch=StageBatch(())))
        assert self.head.fail("it broke", named)
        self.collect()
        return step

    def lose(self, *stages: ToyStage) -> None:
        """Lose the steps in flight and the state of the stages, and continue on ``stages`` a second later."""
        self.head.pause(self.now)
        self.now += 1.0
        self.head.resume([stage.info for stage in stages], self.now)
        self.stages, self.stage, self.chain = stages, stages[-1], Chain(stages)
        self.collect()

    def compute(self, step: PlannedStep) -> StageResult:
        """Run a step on every stage, confirm the others' results, and return the last one's."""
        results, seconds = self.chain.run(step), self.token_s * sum(len(row.tokens) for row in step.batch.rows)
        for index, result in enumerate(results):
            if seconds or index < len(results) - 1:
                self.head.confirm(index, step.batch.step, result.free, seconds, self.now)
        return results[-1]

    def collect(self) -> None:
        for request_id, delta in self.head.take_deltas():
            self.deltas[request_id].append(delta)
        self.head.check()

    def run(self) -> None:
        while self.step():
            pass

    def tokens(self, request_id: RequestId, index: int = 0) -> list[int]:
        return [token for delta in self.deltas[request_id] if delta.index == index for token in delta.tokens]

    def logprobs(self, request_id: RequestId, index: int = 0) -> list[TokenLogprob]:
        return [each for delta in self.deltas[request_id] if delta.index == index for each in delta.logprobs]

    def text(self, request_id: RequestId) -> str:
        return "".join(delta.text for delta in self.deltas[request_id])

    def reason(self, request_id: RequestId) -> str:
        *before, last = self.deltas[request_id]
        assert not any(delta.finish for delta in before)
        assert last.finish is not None
        return last.finish.reason

    def expected(self, request_id: RequestId, index: int = 0, length: int | None = None) -> list[int]:
        return expect_tokens(self.toy, self.requests[request_id], index, length)

    def check_tokens(self, *ids: RequestId) -> None:
        """Compare the answers to the given requests, or to all, with the plain model."""
        for request_id in ids or self.requests:
            for index in range(self.requests[request_id].n):
                assert self.tokens(request_id, index) == self.expected(request_id, index)

    def count_tokens(self) -> int:
        """Return the number of tokens that the last stage has computed."""
        return sum(len(row.tokens) for batch in self.stage.batches for row in batch.rows)
