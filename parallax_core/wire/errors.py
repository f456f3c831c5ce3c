"""Errors of frames. After one, the connection must be closed."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError


class BadFrame(ParallaxError):
    """A frame is damaged, too large, or holds an invalid message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a frame cannot be read: {reason}", "run the same version of Parallax on every node")


class WireVersionMismatch(ParallaxError):
    """A frame has another version of the wire format; ``ours`` is the version of this node."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(
            f"the peer uses version {theirs} of the wire format, this node version {ours}",
            "install the same version of Parallax on every node",
        )
        self.theirs = theirs
        self.ours = ours
