"""Policies: decisions that are made often, cost little, and can be replaced.

A policy is pure: what it is given is all it knows, and the same input gives the same answer. Whoever asks holds the
reins, so that no policy can hang it: a step that could run is never held back for longer than a limit, and an answer
that makes no sense is an error of the policy's, not of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from parallax_core.base.ids import RequestId
from parallax_core.base.refs import Ref


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """What is waiting for the next step."""

    num_ready: int
    """Requests that could have a row in a step planned now."""
    oldest_wait_s: float
    """For how long the first of them could have had one, in seconds."""
    num_in_flight: int
    """Steps that are planned and not yet finished."""


class BatchingPolicy(Protocol):
    """When the next step begins."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0 to begin a step now, or the seconds after which to ask again; something may happen before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A running request, as one that might have to give its pages back."""

    id: RequestId
    priority: float
    """With ageing taken off; lower is more urgent."""
    arrived: float
    num_tokens: int
    """What would have to be computed again."""


class PreemptionPolicy(Protocol):
    """Who gives way when pages run out. Who does is computed again later; nothing is lost but time."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return one of ``holders``, all of lower rank than the one in need, or None to let that one wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaView:
    """A replica that is ready, as one that might get the next request."""

    rank: int
    pending_tokens: int
    """Tokens it has yet to compute: prompts it has not answered, and what their answers may still hold."""
    num_requests: int
    """Requests it has not finished."""
    cached_tokens: int
    """How many tokens at the beginning of the prompt it has probably computed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivalView:
    """The request that wants a replica."""

    number: int
    """How many came before it."""
    num_prompt: int
    """Tokens of its prompt."""
    max_output: int
    """The most tokens its answers may hold together."""


class RoutingPolicy(Protocol):
    """Which replica gets a request."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of one of ``replicas``, of which there is at least one, in order of rank."""


PolicyKind = Literal["batching", "preemption", "routing"]
Policy = BatchingPolicy | PreemptionPolicy | RoutingPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """Offers a policy."""

    name: str
    """What users write, such as ``size-or-delay`` in ``--batching size-or-delay:size=8,delay_s=0.02``."""
    kind: PolicyKind
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[type[Policy]]
    """A dataclass; its fields are the options users may give, numbers, strings or booleans, with their defaults."""
    remedy: str = ""
    """What to do when the factory cannot be imported, such as what to install."""
