"""The interface by which an engine opens and closes its stages, in this process or in others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from parallax_core.base.errors import StageLost
from parallax_core.contracts.stage import Row, StageInfo
from parallax_core.node.channel import Channel


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLocation:
    """Where a stage runs, for status pages and logs."""

    node: str
    """The node's name."""
    backend: str = ""
    host: str = ""
    """The machine's name; empty while no node has the stage."""
    pid: int = 0
    """The process id; 0 while no node has the stage."""
    restarts: int = 0
    """Times another process took the stage over, after a loss or because its node left."""
    relay: str = ""
    """The relay that links it to the next stage; empty for a direct link or none."""


class Executor(Protocol):
    """Opens the stages of one pipeline together and links them to each other and to their head."""

    most_failures: int | None
    """Failures in a row (losses or failed opens, with no token in between) after which the engine gives up; None: it
    never does. For stages that only a new process can repair."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels from the head to each stage, once the stages are open."""

    async def open(self) -> tuple[StageInfo, ...]:
        """Open all stages and have them wait for steps.

        If one fails, the others stay open until `close` or the next `open`. A call after a loss rebuilds the pipeline;
        afterwards no stage holds a sequence.

        Raises:
            EngineFailed: if no further call can succeed either.
            ParallaxError: if a stage cannot be opened, or neighbouring stages do not fit each other.
            Exception: whatever opening a stage in this process raised.
        """

    async def abandon(self, stage: int) -> None:
        """Give up a stage whose step hangs, so that the next `open` does not wait for it."""

    async def replace(self, stage: int) -> bool:
        """Load a stage of a leaving node on another one; return whether one was found.

        The stage runs on. The next `open` gives it to the other node, even if this call is cancelled while that loads.

        Raises:
            ParallaxError: if the other node cannot load it.
        """

    async def explain(self, loss: StageLost) -> StageLost:
        """Return the root cause of ``loss`` if the nodes report one, else ``loss`` itself."""

    async def close(self) -> None:
        """Close the stages. Idempotent; legal at any time."""

    def needs(self) -> str:
        """Return what an operator has to do before the stages can open, with the command; empty if nothing."""

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs."""


@runtime_checkable
class Movable(Protocol):
    """An optional protocol of an `Executor` whose stages may be given to other nodes while the pipeline serves."""

    @property
    def fault(self) -> str:
        """Why the stages could not be opened the last time, while they are still to be; empty: they could, or are."""

    async def wait_moved(self) -> str:
        """Wait until other nodes than those of the last `open` are to have the stages, and return why."""


@runtime_checkable
class StepObserver(Protocol):
    """An optional protocol of an `Executor` that wants to know how long its stages compute."""

    def note_step(self, stage: int, rows: Sequence[Row], seconds: float) -> None:
        """Note that a stage has computed the rows of a step in ``seconds``, by its own clock."""
