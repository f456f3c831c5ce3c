"""Events: what happens in a server, for those who watch. None of them happens per step or per token."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Finish


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReady:
    """The model is loaded, and requests are taken."""

    at: float
    """When, in seconds since 1970; every event has it."""
    model: str
    """What clients call it."""
    load_s: float
    """For how long it was loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBegan:
    """A request is accepted; a `RequestEnded` with its id will follow."""

    at: float
    model: str
    id: RequestId
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnded:
    """A request is over, in whatever way."""

    at: float
    model: str
    id: RequestId
    finish: Finish
    """Its reason is ``aborted`` where the client went away."""
    first_token_s: float | None
    """Seconds from its arrival to the first token of an answer; None: there was none."""
    duration_s: float
    """Seconds from its arrival to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLoss:
    """A replica has lost a stage, and with it the requests it had."""

    at: float
    model: str
    replica: int
    """Its rank."""
    reason: str
    """Which stage, and why, in words."""


Event = EngineReady | RequestBegan | RequestEnded | StageLoss
