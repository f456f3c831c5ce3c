"""The section ``[command]``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """How nodes are started."""

    start: str = "{command}"
    """Starts one node: ``{command}`` is the command of the node, and ``{number}`` its number, from 0."""
    again_s: float = 1.0
    """Seconds after which a node that has ended is started again."""
    grace_s: float = 30.0
    """Seconds that nodes have to end, before they are killed."""
