"""What can be wrong with a frame. The connection that brought it is of no further use."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError


class BadFrame(ParallaxError):
    """A frame that is damaged, too large, or says what no message can say."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a frame cannot be read: {reason}", "run the same version of Parallax on every node")


class WireVersionMismatch(ParallaxError):
    """A frame of another version of the format; ``ours`` is the one this node reads."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(
            f"the peer speaks version {theirs} of the wire format, and this node version {ours}",
            "install the same version of Parallax on every node",
        )
        self.theirs = theirs
        self.ours = ours
