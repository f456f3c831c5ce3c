"""Policies: replaceable decisions that are made often and must be cheap.

A policy is pure: it depends only on its arguments, and the same arguments give the same answer. The caller stays in
control: a step that could run is never held back for longer than a limit, and an invalid answer is an error of the
policy, not of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from parallax_core.base.ids import RequestId
from parallax_core.base.refs import Ref
from parallax_core.contracts.placement import PlacementPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """The requests that wait for the next step."""

    num_ready: int
    """The number of requests that could have a row in a step planned now."""
    oldest_wait_s: float
    """How long the longest waiting of them has been ready, in seconds."""
    num_in_flight: int
    """The number of steps that are planned and not finished."""


class BatchingPolicy(Protocol):
    """Decides when the next step begins."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0 to begin a step now, or the seconds after which to ask again; an event may cause an earlier call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptView:
    """An answer to a request, as a scheduling policy sees it."""

    index: int
    """Its number in the view, from 0, by which a `PromptShare` names it."""
    remaining: int
    """Prompt tokens that could be in the step, before its next token; 0 without any, or while it decodes.

    A preempted answer also computes the tokens of its output again."""
    num_prompt: int
    """The number of tokens in its prompt."""
    cached: int
    """The leading tokens whose KV is reused; of a waiting one, those found when it was first shown."""
    num_output: int
    """The number of tokens drawn so far."""
    age_s: float
    """Seconds since the request arrived."""
    begun_s: float
    """Seconds since its first step; 0: it has had none."""
    priority: int
    """Lower is more urgent."""
    client: bytes = field(repr=False)
    """See `Request.client`: never an API key, only a digest of it."""


@dataclass(frozen=True, kw_only=True)
class SchedulingView:
    """The prompts that could have tokens in the next step; its decodes are chosen already."""

    max_tokens: int
    """The most prompt tokens for which the step has room, at least 1; memory may allow less."""
    num_places: int
    """The places that are free for waiting answers."""
    running: tuple[PromptView, ...]
    """The answers that are on the stages: those with prompt tokens to compute, then the others, each by rank."""
    waiting: tuple[PromptView, ...]
    """The answers that wait to be admitted, by rank: urgency with ageing, then arrival."""


class PromptShare(NamedTuple):
    """Gives a prompt tokens of the next step."""

    prompt: int
    """The `PromptView.index` of the prompt."""
    tokens: int
    """The number of tokens, from 0 to `PromptView.remaining`."""


class SchedulingPolicy(Protocol):
    """Chooses whose prompts are computed in the next step, and how many tokens of each."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return a list or tuple of shares, the first served first; each names another prompt of the view.

        Prompts that it does not name come after those, in the order of the view. What the shares leave of the step is
        given to the prompts in the same order, so a policy holds nothing back. A waiting prompt that does not fit into
        the memory lets no later one be admitted.

        Starving a prompt is an error: that of the highest rank must not wait for more than 64 prompts of lower rank and
        more than 30 seconds while these get more than 64 times its tokens.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A running request that could be preempted."""

    id: RequestId
    priority: float
    """The priority after ageing; lower is more urgent."""
    arrived: float
    """The time of its arrival, in seconds; a later request has a larger one."""
    num_tokens: int
    """The tokens that would have to be computed again."""


class PreemptionPolicy(Protocol):
    """Chooses the request to preempt when pages run out. It is computed again later; only time is lost."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return one of ``holders``, all of lower rank than the request in need, or None to let that request wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaView:
    """A ready replica that could get the next request."""

    rank: int
    pending_tokens: int
    """Tokens it has yet to compute: prompts without an answer, and the most that the answers may still need."""
    num_requests: int
    """The number of unfinished requests."""
    cached_tokens: int
    """The number of leading prompt tokens it has probably cached."""
    pending_prompt: int = 0
    """The part of ``pending_tokens`` that belongs to prompts."""
    token_s: float | None = None
    """Predicted seconds per output token if it gets the request, from measured ones; None: nothing was measured."""
    prompt_token_s: float | None = None
    """Measured seconds to a first token, for each prompt token computed until then; None: nothing was measured."""
    is_suspected: bool = False
    """Whether it is recovering from a loss, or has just refused a request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivalView:
    """The request to route."""

    number: int
    """The number of requests that came before it."""
    num_prompt: int
    """The number of tokens in its prompt."""
    max_output: int
    """The most tokens of all its answers together."""


class RoutingPolicy(Protocol):
    """Chooses the replica for a request."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of one of ``replicas``, which are in order of rank and at least one."""


PolicyKind = Literal["batching", "scheduling", "preemption", "routing", "placement"]
Policy = BatchingPolicy | SchedulingPolicy | PreemptionPolicy | RoutingPolicy | PlacementPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """Offers a policy."""

    name: str
    """The name on the command line: ``size-or-delay`` in ``--set batching=size-or-delay:size=8,delay_s=0.02``."""
    kind: PolicyKind
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[type[Policy]]
    """A dataclass; its fields, with defaults, are the options: numbers, strings or booleans."""
    remedy: str = ""
    """What to do if the factory cannot be imported, such as the package to install."""
