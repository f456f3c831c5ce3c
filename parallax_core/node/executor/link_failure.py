"""The error of a link between two stages."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Refusal


class LinkFailed(ParallaxError):
    """The node of a stage does not reach that of the next one."""

    def __init__(self, one: str, other: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.ends = one, other
        """The names of both nodes."""

    @classmethod
    def find(
        cls, node: JoinedNode, before: JoinedNode | None, after: JoinedNode | None, refusal: Refusal
    ) -> ParallaxError:
        """Return which link of a stage that has refused a `Hop` has failed: to the next one, or from the one before."""
        told = refusal.message, refusal.hint
        if after is not None and refusal.unreached == after.name:
            return cls(node.name, after.name, *told)
        return cls(before.name, node.name, *told) if before is not None else ParallaxError(*told)
