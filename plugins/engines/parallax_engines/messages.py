"""Messages between a server and an engine that schedules itself, in a worker process.

The server assigns an engine to a node that has joined (`AssignEngine`). The node loads it, reports progress
(`EngineLoading`), and reports the engine (`EngineOpened`) or why it cannot be opened (`EngineRefused`). Then the server
submits and aborts requests, and the engine sends their tokens (`Deltas`) and its status (`EngineStatus`) until the
server has it stop (`StopEngine`) or the link ends. The server numbers the requests of a link; a number is never used
again.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Self

import msgspec

from parallax_core.api import (
    LARGEST,
    MOST_NAME,
    MOST_TEXT,
    Count,
    DType,
    EngineInfo,
    EngineStats,
    Grammar,
    HealthState,
    Name,
    Reason,
    Sampling,
    ServiceMessage,
    Text,
    Unit,
    check_words,
    make_printable,
    require,
)
from parallax_core.api.replica import MAX_ANSWERS, MOST_PARTS, Counter

MOST_BYTES = 2**22
"""The most bytes of a message: those of a header of any frame."""
MOST_PER_S = 1e6
"""The most messages per second: the other end is a process of this server."""
MOST_POOLS = 64
"""The most pools in the statistics of an engine."""
MOST_LOGPROBS = 1024
"""The largest `EngineInfo.max_logprobs`."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ANSWERS)]
AnswerCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_ANSWERS)]
Priority = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
MANY = msgspec.Meta(max_length=MOST_BYTES)
"""As many as a message may hold at all."""
Counts = Annotated[tuple[Count, ...], MANY]
Scores = Annotated[tuple[tuple[Count, float, Annotated[tuple[tuple[Count, float], ...], MANY]], ...], MANY]
"""Tokens with their log-probabilities, and the best tokens of each position with theirs."""


class EngineMessage(ServiceMessage, frozen=True):
    """The base of all messages of engines."""

    most_bytes: ClassVar[int] = MOST_BYTES
    most_per_s: ClassVar[float] = MOST_PER_S


class AssignEngine(EngineMessage, frozen=True, tag=47):
    """Assigns an engine for a whole model to a node; see `EnginePlan` for the meaning of the fields."""

    backend: Name
    model: Text
    """The model as the server names it; the node finds or fetches it."""
    dtype: DType
    device: Text
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)]
    status_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    """Seconds between two `EngineStatus`."""
    max_batch_tokens: Count = 0
    max_running: Count = 0


class EngineLoading(EngineMessage, frozen=True, tag=48):
    """Reports a node's progress in loading its engine, or that it begins; see `Progress`."""

    task: Name
    done: Count
    total: Counter
    """-1: unknown."""
    unit: Unit = "bytes"

    def tidy(self) -> Self:
        """Return the message with a printable task."""
        return msgspec.structs.replace(self, task=make_printable(self.task, MOST_NAME))


class EngineOpened(EngineMessage, frozen=True, tag=49):
    """Reports that a node has started its engine."""

    info: EngineInfo
    weights_parts: Annotated[dict[Name, Name], msgspec.Meta(max_length=MOST_PARTS)]
    """The content of the model's folder, part by part; see `StageInfo.weights_parts`."""

    def check(self) -> None:
        """Check that the description of the engine is plausible."""
        check_engine(self.info)
        check_words(*self.weights_parts, *self.weights_parts.values())


class EngineRefused(EngineMessage, frozen=True, tag=50):
    """Reports that a node cannot open its engine."""

    message: Text
    hint: Text = ""

    def tidy(self) -> Self:
        """Return the message with printable texts."""
        message, hint = make_printable(self.message, MOST_TEXT), make_printable(self.hint, MOST_TEXT)
        return msgspec.structs.replace(self, message=message, hint=hint)


class Submit(EngineMessage, frozen=True, tag=51):
    """Submits a request to an engine; see `Request` for the meaning of the fields."""

    number: Count
    """The number of the request on this link."""
    prompt: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=MOST_BYTES)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    sampling: Sampling
    stop_ids: Counts = ()
    priority: Priority = 0
    n: AnswerCount = 1
    logprobs: Counter = -1
    """-1: not requested."""
    prompt_logprobs: Counter = -1
    """-1: not requested."""
    adapter: Name = ""
    salt: Text = ""
    grammar: Grammar | None = None


class Abort(EngineMessage, frozen=True, tag=52):
    """Aborts requests on behalf of the server. Ended and unknown ones are ignored."""

    numbers: Counts


class TokenFinish(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a request ended; see `Finish`."""

    reason: Reason
    message: Text = ""
    cached_tokens: Count = 0


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """New tokens of one request; see `Delta` for the meaning of the fields.

    A delta without tokens, end and finish adds its ``prompt_logprobs`` to those of the next one.
    """

    number: Count
    tokens: Counts = ()
    index: Index = 0
    ended: Reason | None = None
    finish: TokenFinish | None = None
    cached_tokens: Count = 0
    logprobs: Scores = ()
    prompt_logprobs: Scores = ()


class Deltas(EngineMessage, frozen=True, tag=53):
    """The new tokens of all requests of a link, as a rule those of one step of the engine."""

    deltas: Annotated[tuple[TokenDelta, ...], MANY]

    def check(self) -> None:
        """Check that log-probabilities fit the tokens, and that messages are safe to show."""
        for delta in self.deltas:
            require(len(delta.logprobs) in {0, len(delta.tokens)}, "only some tokens have log-probabilities")
            if delta.finish is not None:
                check_words(delta.finish.message)


class EngineStatus(EngineMessage, frozen=True, tag=54):
    """The health and the statistics of an engine, at regular intervals; see `Health`."""

    state: HealthState
    reason: Text = ""
    stats: EngineStats = msgspec.field(default_factory=EngineStats)

    def check(self) -> None:
        """Check the numbers of the statistics."""
        check_words(self.reason)
        check_stats(self.stats)

    def tidy(self) -> Self:
        """Return the message with a printable reason."""
        return msgspec.structs.replace(self, reason=make_printable(self.reason, MOST_TEXT))


class StopEngine(EngineMessage, frozen=True, tag=55):
    """Tells a node to stop its engine; it answers with a last `EngineStatus`, which says ``draining``."""


ALL = (
    AssignEngine,
    EngineLoading,
    EngineOpened,
    EngineRefused,
    Submit,
    Abort,
    Deltas,
    EngineStatus,
    StopEngine,
)


def check_engine(info: EngineInfo) -> None:
    """Check that a node's description of its engine is plausible.

    Raises:
        BadFrame: if it is not; the message names the fault.
    """
    sizes = (info.num_layers, info.vocab_size, info.context_length, info.max_running, info.max_batch_tokens)
    require(all(0 < size <= LARGEST for size in sizes), "a size of an engine is out of range")
    require(0 < info.max_answers <= MAX_ANSWERS, "the most answers of an engine are out of range")
    require(0 <= info.max_logprobs <= MOST_LOGPROBS, "the most log-probabilities of an engine are out of range")
    require(0 <= info.weight_bytes <= LARGEST, "the size of an engine's weights is out of range")
    words = (info.device, info.dtype)
    require(all(len(word) <= MOST_TEXT for word in words), "a text of an engine is too long")
    check_words(*words)


def check_stats(stats: EngineStats) -> None:
    """Check the numbers of an engine's statistics.

    Raises:
        BadFrame: if one is out of range.
    """
    counts = [getattr(stats, field.name) for field in fields(stats) if field.name != "pools"]
    require(all(0 <= count <= LARGEST for count in counts), "a number of an engine's statistics is out of range")
    require(len(stats.pools) <= MOST_POOLS, f"the statistics of an engine have {len(stats.pools)} pools")
    for use in stats.pools:
        numbers = (use.stage, use.used, use.total)
        require(all(0 <= count <= LARGEST for count in numbers), "a pool's use is out of range")
        require(len(use.kind) <= MOST_NAME, "the kind of a pool is too long")
        check_words(use.kind)
