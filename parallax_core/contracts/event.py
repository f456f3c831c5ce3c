"""Events of a server, for plugins that observe it. None of them happens per step or per token."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Finish


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReady:
    """The model is loaded and the server accepts requests."""

    at: float
    """The time of the event, in seconds since 1970; every event has it."""
    model: str
    """The name by which clients request it."""
    load_s: float
    """How long loading took, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBegan:
    """A request was accepted; a `RequestEnded` with the same id will follow."""

    at: float
    model: str
    id: RequestId
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnded:
    """A request has ended, successfully or not."""

    at: float
    model: str
    id: RequestId
    finish: Finish
    """The reason is ``aborted`` if the client disconnected."""
    first_token_s: float | None
    """Seconds from its arrival to the first token of an answer; None: there was no token."""
    duration_s: float
    """Seconds from its arrival to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLoss:
    """A replica has lost a stage, which is being replaced; its requests are computed again."""

    at: float
    model: str
    replica: int
    """The rank of the replica."""
    reason: str
    """The stage and the cause, in words."""


Event = EngineReady | RequestBegan | RequestEnded | StageLoss
