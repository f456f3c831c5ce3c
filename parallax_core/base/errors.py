"""Errors a user can act on: one sentence of what is wrong, one of what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from parallax_core.base.ids import SeqId

LossCause = Literal["unknown", "link", "invalid_frame"]
"""Why a node or a stage was lost. Recovery decides by this, and never by a message.

``unknown``        nobody has said
``link``           a link ended: the node at its other end is dead, hung or unreachable
``invalid_frame``  a node sent a frame that cannot be read, and was disconnected: the root cause of all other losses
"""


class ParallaxError(Exception):
    """The root of every error meant for a person.

    The command line prints ``error: MESSAGE`` and ``hint: HINT`` without a traceback; the HTTP server
    puts both into an OpenAI-shaped error body. A traceback therefore always means a bug of ours.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ParallaxError):
    """The command line was used wrongly; the process exits with 2."""


class UnknownName(ParallaxError):
    """A plugin, model or alias nobody offers."""


class PluginConflict(ParallaxError):
    """Two plugins offer one name."""


class BrokenPlugin(ParallaxError):
    """A plugin was asked for by name and cannot be loaded."""


class Unsupported(ParallaxError):
    """A capability this backend, source or model does not have."""


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
    """The engine has as many requests waiting as it takes."""


class RequestTimeout(ParallaxError):
    """A request took longer than it may."""


class BackendFailed(ParallaxError):
    """The backend raised while loading or running a model.

    ``sequences`` are those at fault, where a backend knows them: of a step that failed only their requests end. Empty:
    those of all rows of the step.
    """

    def __init__(self, message: str, hint: str = "", sequences: Iterable[SeqId] = ()) -> None:
        super().__init__(message, hint)
        self.sequences = tuple(sequences)


class StageLost(ParallaxError):
    """A stage cannot go on: what it holds is not what its head believes.

    ``stage`` is its number in the pipeline; None: it is not certain which one it is. ``cause`` is why it was lost,
    ``peer`` the node to which the stage lost its link, if it is known that it lost one. ``reason`` is the message
    without the number of the stage.
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
    """A stage has computed one step for longer than it may: the thread it runs on cannot be asked to stop."""


class EngineFailed(ParallaxError):
    """An engine can never answer again in this process; a new process may."""


class PeerLost(ParallaxError):
    """A node at the other end of a link is dead, hung or cut off, or does not speak as it should.

    ``cause`` is why, as far as the transport knows. ``peer`` is the name of the node; empty: core fills it in.
    """

    def __init__(self, message: str, hint: str = "", *, cause: LossCause = "link", peer: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.peer = peer


class OutOfPages(ParallaxError):
    """A pool of KV pages has fewer free pages than are needed."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} pages are needed, and {free} are free")
        self.needed = needed
        self.free = free
