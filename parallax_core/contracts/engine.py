"""Engines: what the server talks to. A replica of a model, or several behind one face, all look like this."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.sample import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request, tokenized once at the edge. Filled by the server."""

    id: RequestId
    prompt: tuple[int, ...]
    """Token ids; at least one."""
    max_tokens: int | None
    """The most tokens to generate; None: as many as the context holds."""
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the text; they count as output and have no text."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; the text ends before them."""
    priority: int = 0
    """Lower is served first; waiting makes a request more urgent."""
    timeout_s: float | None = None
    """Seconds from arrival after which the request ends with an error."""
    waited_s: float = 0.0
    """Seconds from its arrival until it was submitted; they count towards ``timeout_s``."""
    n: int = 1
    """How many answers, each with draws of its own; ``max_tokens`` holds for each."""
    logprobs: int | None = None
    """Give the log-probability of each token of the output, and of this many best ones; None: neither."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt after the first."""
    adapter: str = ""
    """The LoRA adapter, by the name it was loaded under; empty: none."""
    salt: str = ""
    """Requests of different salts share no cache."""
    default_max_tokens: int | None = None
    """Where ``max_tokens`` is None: the most tokens of an answer, as far as there is room; None: whatever there is room
    for."""


Reason = Literal["stop", "length", "error", "timeout", "aborted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Where the seconds of a request went, one part after the other; a part that was not reached is 0."""

    queued_s: float = 0.0
    """From arrival to the first step with a row of it."""
    prefill_s: float = 0.0
    """From then to its first token."""
    decode_s: float = 0.0
    """From then to its end."""
    stages_s: tuple[float, ...] = ()
    """Of the time after the queue, how long each stage computed steps with rows of it, alone or among others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """How a stream ended, and what it cost."""

    reason: Reason
    prompt_tokens: int
    output_tokens: int
    """Of all answers together."""
    message: str = ""
    """For ``error`` (the request failed), ``timeout`` (it took longer than it may) and ``aborted`` (the engine ends):
    what happened, in words for the client."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, since a cache held them."""
    timing: Timing | None = None
    """If the engine measures it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability, before penalties and filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The best tokens there and theirs, best first; as many as were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What a stream yields: new text of one answer, how that answer ended, and on the last one the finish."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    index: int = 0
    """Which answer, in ``range(Request.n)``."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens``, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """On the first delta of a request that asked for them: one for each token of the prompt after the first."""
    ended: Reason | None = None
    """The answer is over, for this reason; others of the request may go on."""
    finish: Finish | None = None
    """The stream is over. Its reason is that of the answer that ended last, or why none of the rest will end."""


class Stream(Protocol):
    """The answer to one request: deltas, the last of which, and only it, carries a finish."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Iterate the deltas; to be done once."""

    def close(self) -> None:
        """Abort the request everywhere, and end the iteration; harmless when it has ended or was closed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Whether an engine can answer."""

    state: Literal["starting", "ready", "draining", "failed"]
    reason: str = ""


class Engine(Protocol):
    """A replica serving a whole model."""

    async def start(self) -> None:
        """Become ready. A start that raises leaves nothing running."""

    async def stop(self) -> None:
        """End every stream and release everything. Idempotent, and legal at any time."""

    def submit(self, request: Request) -> Stream:
        """Validate, accept and account for a request.

        Raises:
            InvalidRequest: if it can never be served.
            Unavailable: if the engine is not ready, or too many requests wait.
        """

    def health(self) -> Health:
        """Answer from memory, at once."""


@runtime_checkable
class Admitting(Protocol):
    """An optional protocol beside `Engine`."""

    def check_room(self) -> None:
        """Ask before a request costs any work whether one would be taken now; answered from memory, at once.

        Raises:
            Unavailable: as `Engine.submit` would, whatever the request.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUse:
    """One pool of one stage."""

    stage: int
    kind: str
    """As `PoolInfo.kind`."""
    used: int
    """Pages that sequences hold, running or stored."""
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """What a replica has done since it began, and does now."""

    running: int = 0
    """Requests that the stages hold a part of."""
    waiting: int = 0
    """Requests that wait for their first step, or for another after they gave way."""
    steps: int = 0
    prompt_tokens: int = 0
    """Of the prompts of requests that were begun."""
    cached_tokens: int = 0
    """Of these, what a cache held."""
    output_tokens: int = 0
    preemptions: int = 0
    pools: tuple[PoolUse, ...] = ()


class Measured(Protocol):
    """An optional protocol beside `Engine`."""

    def stats(self) -> tuple[EngineStats, ...]:
        """Return one for each replica; answered from memory, at once."""
