"""Messages between a head and an engine that schedules itself, in a worker process.

The node joins as for a stage. The head assigns it an engine (`AssignEngine`); the node loads it, reports progress
(`Loading`), and reports the engine (`EngineOpened`) or why it cannot be opened (`Refusal`). Then the head submits and
aborts requests, and the engine sends their tokens (`Deltas`) and its status (`EngineStatus`) until the head releases it
(`Release`) or the link ends. The head numbers the requests of a link; a number is never used again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.device import DType
from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, HealthState, Reason
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.contracts.value import LARGEST, Count, Counter, Value
from parallax_core.wire.base import Leased, Name, Text

Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ANSWERS)]
AnswerCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_ANSWERS)]
Priority = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Scores = tuple[tuple[Count, float, tuple[tuple[Count, float], ...]], ...]
"""Tokens with their log-probabilities, and the best tokens of each position with theirs."""


class AssignEngine(Leased, frozen=True, tag=15):
    """Assigns an engine for a whole model to a node; see `EnginePlan` for the meaning of the fields."""

    backend: Name
    model: Text
    """The model as the user named it; the node finds or fetches it."""
    dtype: DType
    device: Text
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)]
    status_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    """Seconds between two `EngineStatus`."""
    max_batch_tokens: Count = 0
    max_running: Count = 0

    @property
    def stage(self) -> int:
        """The stage in messages that stages use, too: an engine counts as stage 0."""
        return 0


class EngineOpened(Leased, frozen=True, tag=16):
    """Reports that a node has started its engine."""

    info: EngineInfo
    weights_parts: dict[str, str]
    """The content of the model's folder, part by part; see `StageInfo.weights_parts`."""


class Submit(Leased, frozen=True, tag=17):
    """Submits a request to an engine; see `Request` for the meaning of the fields."""

    number: Count
    """The number of the request on this link."""
    prompt: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    sampling: Sampling
    stop_ids: tuple[Count, ...] = ()
    priority: Priority = 0
    n: AnswerCount = 1
    logprobs: Counter = -1
    """-1: not requested."""
    prompt_logprobs: Counter = -1
    """-1: not requested."""
    adapter: Name = ""
    salt: Text = ""
    grammar: Grammar | None = None


class Abort(Leased, frozen=True, tag=18):
    """Aborts requests on behalf of the head. Ended and unknown ones are ignored."""

    numbers: tuple[Count, ...]


class TokenFinish(Value, frozen=True):
    """How a request ended; see `Finish`."""

    reason: Reason
    message: Text = ""
    cached_tokens: Count = 0


class TokenDelta(Value, frozen=True):
    """New tokens of one request; see `Delta` for the meaning of the fields.

    A delta without tokens, end and finish adds its ``prompt_logprobs`` to those of the next one.
    """

    number: Count
    tokens: tuple[Count, ...] = ()
    index: Index = 0
    ended: Reason | None = None
    finish: TokenFinish | None = None
    cached_tokens: Count = 0
    logprobs: Scores = ()
    prompt_logprobs: Scores = ()


class Deltas(Leased, frozen=True, tag=19):
    """The new tokens of all requests of a link, as a rule those of one step of the engine."""

    deltas: tuple[TokenDelta, ...]


class EngineStatus(Leased, frozen=True, tag=20):
    """The health and the statistics of an engine, at regular intervals; see `Health`."""

    state: HealthState
    reason: Text = ""
    stats: EngineStats = msgspec.field(default_factory=EngineStats)


EngineMessage = AssignEngine | EngineOpened | Submit | Abort | Deltas | EngineStatus
