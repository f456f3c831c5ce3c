"""Errors that a user can act on: one sentence states the problem, a hint the next step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from parallax_core.base.ids import SeqId

SHUTTING_DOWN = "the server is shutting down"
"""The message to clients whose requests the server refuses or ends as it stops."""

LossCause = Literal["unknown", "link", "invalid_frame", "leave"]
"""Why a node or a stage was lost. Recovery decides by the cause, never by a message.

``unknown``        the cause is not known
``link``           a link ended: the node at its other end is dead, hung or unreachable
``invalid_frame``  a node sent an invalid frame and was disconnected: the root cause of all other losses
``leave``          a node leaves, and no other node has its layers
"""


class ParallaxError(Exception):
    """The base class of all errors shown to users.

    The command line prints ``error: MESSAGE`` and ``hint: HINT`` without a traceback; the HTTP server puts both into an
    error body in OpenAI's format. A traceback therefore always means a bug in Parallax.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ParallaxError):
    """The command line was used wrongly; the process exits with 2."""


class UnknownName(ParallaxError):
    """No plugin, model or alias has this name."""


class PluginConflict(ParallaxError):
    """Two plugins offer the same name."""


class BrokenPlugin(ParallaxError):
    """A plugin requested by name cannot be loaded."""


class Unsupported(ParallaxError):
    """This backend, source or model does not have a requested capability."""


class InvalidRequest(ParallaxError):
    """A request that can never be served as it is; ``param`` names the offending field."""

    def __init__(self, message: str, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint)
        self.param = param


class Unavailable(ParallaxError):
    """The engine cannot take the request now; trying again after ``retry_after_s`` seconds may work."""

    def __init__(self, message: str, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """The engine's queue of waiting requests is full."""


class RequestTimeout(ParallaxError):
    """A request exceeded its timeout."""


class BackendFailed(ParallaxError):
    """The backend raised while loading or running a model.

    ``sequences`` are those at fault for a failed step, if the backend knows them: only their requests end. Empty: the
    sequences of all rows of the step.
    """

    def __init__(self, message: str, hint: str = "", sequences: Iterable[SeqId] = ()) -> None:
        super().__init__(message, hint)
        self.sequences = tuple(sequences)


class StageLost(ParallaxError):
    """A stage cannot go on: its state is unknown or differs from the head's.

    ``stage`` is its index in the pipeline; None: it is not certain which stage it is. ``cause`` is why it was lost.
    ``peer`` is the node to which the stage lost its link, if known. ``reason`` is the message without the number of the
    stage.
    """

    def __init__(
        self, message: str, hint: str = "", stage: int | None = None, *, cause: LossCause = "unknown", peer: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.stage = stage
        self.cause = cause
        self.peer = peer
        self.reason = message


class StageHung(StageLost):
    """A stage has computed one step for longer than its limit; its thread cannot be stopped."""


class EngineFailed(ParallaxError):
    """An engine cannot recover in this process; a new process may work."""


class PeerLost(ParallaxError):
    """The node at the other end of a link is dead, hung, cut off, or violates the protocol.

    ``cause`` is why, if the transport knows. ``peer`` is the name of the node; empty: core fills it in.
    """

    def __init__(self, message: str, hint: str = "", *, cause: LossCause = "link", peer: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.peer = peer


class UnusableAddress(ParallaxError):
    """This node cannot connect to an address: it is not one of its transport, or no key of the node there is known."""


class IncompatibleNode(PeerLost):
    """The node at the other end runs a version of Parallax with which this one cannot work."""


class OutOfPages(ParallaxError):
    """A pool of KV pages has fewer free pages than are needed."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} pages are needed, but {free} are free")
        self.needed = needed
        self.free = free
