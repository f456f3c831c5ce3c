"""What an engine needs of whoever runs its stages, be it this process or others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parallax_core.base.errors import StageLost
from parallax_core.base.ids import LeaseId
from parallax_core.contracts.stage import StageInfo
from parallax_core.node.channel import Channel

LEASE = LeaseId(0)
"""A stage has one head: what it calls its claim on the stage is of no account yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLocation:
    """Where a stage runs, as an operator sees it."""

    node: str
    """The name of the node."""
    backend: str = ""
    host: str = ""
    """The machine; empty: nobody has the stage."""
    pid: int = 0
    """The process; 0: nobody has the stage."""
    restarts: int = 0
    """How often another node took the stage over after a loss."""


class Executor(Protocol):
    """The stages of one pipeline, opened together and linked to each other and to their head."""

    most_failures: int | None
    """After how many losses and failures to open, in a row and without a token in between, it is given up, since only a
    new process can help; None: never."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """From the head to each stage, once they are open."""

    async def open(self) -> tuple[StageInfo, ...]:
        """Open all stages, and have them wait for steps; what fails leaves the rest to `close`, or to another call.

        A call after a loss builds the pipeline anew; no stage holds any sequence then.

        Raises:
            EngineFailed: if no further call can succeed either.
            ParallaxError: if a stage cannot be opened, or they do not fit each other.
            Exception: what opening a stage of this process raised.
        """

    async def abandon(self, stage: int) -> None:
        """Let go of a stage whose computing hangs, so that the next `open` does not wait for it."""

    async def explain(self, loss: StageLost) -> StageLost:
        """Return what was lost, if more can be told of it than ``loss``: what a neighbour of that says comes first."""

    async def close(self) -> None:
        """Close the stages. Twice is harmless; legal at any time."""

    def needs(self) -> str:
        """Return what it waits for that somebody has to do, and how; empty: for nothing."""

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs."""
