"""Engines: what the server talks to. A replica of a model, or several behind one face, all look like this."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

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


Reason = Literal["stop", "length", "error", "aborted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """How a stream ended, and what it cost."""

    reason: Reason
    prompt_tokens: int
    output_tokens: int
    message: str = ""
    """For ``error`` (the request failed) and ``aborted`` (the engine ends): what happened, in words for the client."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What a stream yields: new text, and on the last one the finish."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None


class Stream(Protocol):
    """The answer to one request: deltas, the last of which, and only it, carries a finish."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """Iterate the deltas; to be done once."""

    def close(self) -> None:
        """Abort the request everywhere; harmless when it has ended or was closed before."""


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
