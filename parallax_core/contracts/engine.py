"""The engine protocol, through which the server uses one replica of a model or several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.tensor import Tensor

Pooling = Literal["last", "mean"]
"""How the hidden states of a prompt become its embedding: ``last`` takes that of the last token, ``mean`` the mean of
all."""

MAX_ANSWERS = 128
"""The largest `Request.n`."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Asks to keep the KV of a prompt, as far as there is room for pins."""

    ttl_s: float
    """Seconds after the end of the request for which it is kept."""
    owner: bytes = b""
    """The client; the pins of each have a bound of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request, tokenized by the server."""

    id: RequestId
    prompt: tuple[int, ...]
    """Token ids; at least one."""
    max_tokens: int | None
    """The most tokens to generate; None: as many as the context holds."""
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer; they count as output and have no text."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the text ends before them."""
    reasoning_marks: tuple[str, str] | None = None
    """The marks before and after the reasoning, in which stop strings do not count; the first is empty if the prompt
    has opened the reasoning. None: the model does not mark it."""
    priority: int = 0
    """Lower is served first; waiting makes a request more urgent."""
    timeout_s: float | None = None
    """Seconds from arrival after which the request ends with an error."""
    waited_s: float = 0.0
    """Seconds between arrival and submission; they count towards ``timeout_s``, and make the request more urgent."""
    n: int = 1
    """The number of answers, each with its own draws; ``max_tokens`` applies to each."""
    logprobs: int | None = None
    """Return the log-probability of each output token, and of this many best tokens; None: neither."""
    prompt_logprobs: int | None = None
    """The same for the prompt tokens after the first."""
    adapter: str = ""
    """The name of a loaded LoRA adapter; empty: none."""
    salt: str = ""
    """Requests of different salts share no cache. The server derives it from the client and its ``cache_salt``; whoever
    submits requests of several clients gives those of each a salt that the others cannot choose."""
    default_max_tokens: int | None = None
    """The most tokens of an answer if ``max_tokens`` is None, within the context length; None: up to the context
    length."""
    is_seeded: bool = False
    """Whether the client chose `Sampling.seed`; an engine that cannot repeat its draws refuses that."""
    delivered: tuple[tuple[int, ...], ...] = ()
    """For each of the ``n`` answers, the tokens that the client has already; empty: none. The answers go on after them:
    these tokens count as output, and are not sent again. Only for an engine that is `Resumable`."""
    ended: frozenset[int] = frozenset()
    """Of the answers in ``delivered``, those that have ended, by index: they do not go on, though there may be room."""
    grammar: Grammar | None = None
    """The grammar of each answer's text; None: any text. Needs ``stop_ids``, which end a complete answer."""
    shown_tokens: frozenset[int] = frozenset()
    """Special tokens that the text of the answer keeps; other special tokens give no text."""
    client: bytes = b""
    """The client that sent it: clients take turns in slow work, such as masks of tokens, and in scheduling policies.
    The server sets a digest of the API key, never the key, or else the address. Empty: not known."""
    pin: Pin | None = None
    """Keep the KV of the prompt from being evicted; None: it is kept as long as nothing else needs its memory."""
    pooling: Pooling | None = None
    """Return an embedding of the prompt with the first token of the answer; None: none. Only for a single answer."""


Reason = Literal["stop", "length", "error", "timeout", "aborted"]


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a request waited for lost stages to be replaced, in seconds."""

    start_s: float
    """From the request's arrival at its engine."""
    took_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The phases of a request, in seconds; a phase that was not reached is 0."""

    queued_s: float = 0.0
    """From arrival to its first step."""
    prefill_s: float = 0.0
    """From its first step to its first token."""
    decode_s: float = 0.0
    """From its first token to its end."""
    stages_s: tuple[float, ...] = ()
    """For each stage, the time it computed steps with rows of the request, alone or with others. If the pipeline was
    rebuilt with another number of stages, those at the same place count together."""
    hops_s: tuple[float, ...] = ()
    """For each stage, the time these steps took to reach it: on the link, and waiting there for earlier steps. The
    first hop starts at the head, and the last includes the way back. Steps of a long prompt overlap; each counts."""
    sampling_s: float = 0.0
    """Part of the last stage's time: sampling; 0 if its backend does not measure it."""
    detokenize_s: float = 0.0
    """The time the head took to turn tokens into text and look for stop strings."""
    recovery_s: float = 0.0
    """Of the first three phases, how long the request waited for lost stages to be replaced."""
    pauses: tuple[Pause, ...] = ()
    """The parts of ``recovery_s``, one for each time that a stage was lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """How a stream ended, and its usage."""

    reason: Reason
    prompt_tokens: int
    output_tokens: int
    """Summed over all answers."""
    message: str = ""
    """What happened, for the client: with ``error`` (the request failed), ``timeout`` (it took longer than allowed) or
    ``aborted`` (the engine stops). With another reason, a note on how the answer was computed."""
    param: str = ""
    """The field of the request at fault, if the reason is ``error``, as in `InvalidRequest`; empty: none is."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the KV cache and not computed."""
    pinned_tokens: int = 0
    """Prompt tokens whose KV is kept as long as `Request.pin` asks; 0 if there was no room."""
    timing: Timing | None = None
    """None: the engine does not measure it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability, after a grammar's mask and before penalties and filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The best tokens at this position and their log-probabilities, best first; as many as requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """An item of a stream: new text of one answer, how that answer ended, and on the last item the finish."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    index: int = 0
    """The index of the answer, in ``range(Request.n)``."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens``, if requested."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """On the first delta, if requested: one for each token of the prompt after the first."""
    ended: Reason | None = None
    """The reason why this answer ended; other answers to the request may go on."""
    stop_string: str = ""
    """Of ``Request.stop``, the string that ended this answer; empty: it ended otherwise, or not yet."""
    finish: Finish | None = None
    """Set on the last delta. Its reason is that of the answer that ended last, or why the rest cannot be finished."""
    cached_tokens: int = 0
    """On the first delta of a `TokenEngine` that knows it so early: `Finish.cached_tokens`. Without it, an answer that
    ends at a stop string counts none."""
    embedding: Tensor | None = None
    """On the first delta, if requested: the hidden states of the prompt after the final norm, pooled as
    `Request.pooling` says; float, of shape [width]."""


class Stream(Protocol):
    """The deltas of one request; the last one, and only it, carries a finish."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Iterate over the deltas; possible only once."""

    def close(self) -> None:
        """Abort the request and end the iteration. Does nothing if it has ended or is closed."""


HealthState = Literal["starting", "ready", "draining", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Whether an engine can serve requests."""

    state: HealthState
    reason: str = ""


class Engine(Protocol):
    """A replica serving a whole model.

    Whatever ends its work, every stream ends, and it works again or is not ready.
    """

    async def start(self) -> None:
        """Become ready. If it raises, nothing is left running."""

    async def stop(self) -> None:
        """End every stream and release all resources. Idempotent; may be called at any time."""

    def submit(self, request: Request) -> Stream:
        """Validate and accept a request.

        Raises:
            InvalidRequest: if it can never be served; ``param`` names the field of `Request` or `Sampling`.
            Unavailable: if the engine is not ready, or too many requests wait.
        """

    def health(self) -> Health:
        """Return the current health, from memory, without waiting."""


@runtime_checkable
class Admitting(Protocol):
    """An optional protocol of an `Engine` that can refuse requests before they are prepared."""

    def check_room(self) -> None:
        """Check, from memory and without waiting, whether a request would be accepted now.

        Raises:
            Unavailable: as `Engine.submit` would raise it for any request.
        """


@runtime_checkable
class Resumable(Protocol):
    """An optional protocol of an `Engine` that continues answers which another one began."""

    def can_resume(self, request: Request) -> bool:
        """Return whether ``request``, with tokens in `Request.delivered`, gets the tokens that it would have got."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUse:
    """One pool of one stage."""

    stage: int
    kind: str
    """See `PoolInfo.kind`."""
    used: int
    """Pages held by running and stored sequences."""
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """What a replica has done since it started, and its current load."""

    running: int = 0
    """Requests with at least one sequence on the stages."""
    waiting: int = 0
    """Requests that wait for their first step, or for another one after a preemption."""
    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of the requests that have started."""
    cached_tokens: int = 0
    """Those prompt tokens that were found in the KV cache."""
    output_tokens: int = 0
    preemptions: int = 0
    requests_replayed: int = 0
    """Times that a request was computed again after the loss of a stage."""
    requests_lost: int = 0
    """Requests that ended because a lost stage was not replaced in time, or its replacement could not serve them."""
    pools: tuple[PoolUse, ...] = ()


@runtime_checkable
class Measured(Protocol):
    """An optional protocol of an `Engine` that reports statistics."""

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics of each replica, from memory, without waiting."""
