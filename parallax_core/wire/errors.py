"""Errors of frames. After one, the connection must be closed."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError
from parallax_core.wire.versions import SAME_VERSION_HINT, NodeVersions


class BadFrame(ParallaxError):
    """A frame is damaged, too large, or holds an invalid message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a frame cannot be read: {reason}", SAME_VERSION_HINT)


class UnknownMessage(BadFrame):
    """A frame holds a message of no kind that the receiver takes; ``tag`` is its tag."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"it holds a message of an unknown kind, {tag}")
        self.tag = tag


class WireVersionMismatch(ParallaxError):
    """A frame has another version of the wire format; ``ours`` is the version of this node.

    ``sender`` has all versions of the node that sent it; None: the frame does not say.
    """

    def __init__(self, theirs: int, ours: int, sender: NodeVersions | None = None) -> None:
        super().__init__(
            f"the peer uses version {theirs} of the wire format, this node version {ours}", SAME_VERSION_HINT
        )
        self.theirs = theirs
        self.ours = ours
        self.sender = sender
