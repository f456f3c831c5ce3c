"""Places the requests of lost replicas on other replicas, the most urgent first."""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from parallax_core.base.tasks import TASK_ENDINGS, start_task
from parallax_core.contracts.engine import Finish
from parallax_core.node.routing.failover import RoutedStream

logger = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between attempts to place the requests that wait."""

MoveOutcome = RoutedStream | Finish | None
"""Where a request goes on; or how it ends; None: as its lost replica ended it."""
MoveNeed = Literal["replica", "room"]
"""What a request waits for: a replica that is ready, or room on one."""
Attempt = Callable[[], MoveOutcome | MoveNeed]
"""Places a request, or returns what it needs."""


@dataclass(eq=False, slots=True)
class Move:
    """A request that waits for a replica."""

    rank: tuple[float, int]
    """Urgency, then arrival; lower is served first."""
    attempt: Attempt
    outcome: asyncio.Future[MoveOutcome]
    need: MoveNeed = "replica"


class MoveQueue:
    """The requests that wait for a replica after the loss of theirs. Belongs to one event loop.

    All of them are tried again and again in order of urgency, so that the most urgent gets the first free place.
    """

    def __init__(self) -> None:
        self._moves: list[Move] = []
        self._moving: asyncio.Task[None] | None = None

    @property
    def needs_room(self) -> bool:
        """Whether a request waits for room on a replica."""
        return any(move.need == "room" for move in self._moves)

    async def place(self, rank: tuple[float, int], attempt: Attempt) -> MoveOutcome:
        """Return the outcome of a request, once ``attempt`` returns one."""
        loop = asyncio.get_running_loop()
        move = Move(rank, attempt, loop.create_future())
        insort(self._moves, move, key=lambda each: each.rank)
        if self._moving is None or self._moving.done():
            self._moving = start_task(self._run())
            self._moving.add_done_callback(self._note_end)
        try:
            return await move.outcome
        except asyncio.CancelledError:
            if not move.outcome.cancelled() and isinstance(placement := move.outcome.result(), RoutedStream):
                placement.end()  # it has no reader
            raise
        finally:
            if move in self._moves:
                self._moves.remove(move)

    def _note_end(self, moving: asyncio.Task[None]) -> None:
        """Once the task fails, end the requests that still wait as their lost replicas ended them."""
        if moving is not self._moving:  # another one has taken over
            return
        if not moving.cancelled() and (error := moving.exception()) is not None:
            logger.critical("requests cannot be moved", exc_info=error)
        for move in self._moves:
            if not move.outcome.done():
                move.outcome.set_result(None)

    async def _run(self) -> None:
        while self._moves:
            for move in list(self._moves):
                self._try(move)
                await asyncio.sleep(0)  # to continue a long answer takes milliseconds
            if self._moves:
                await asyncio.sleep(LOOK_S)

    def _try(self, move: Move) -> None:
        if move.outcome.done():
            return
        try:
            outcome: MoveOutcome | MoveNeed = move.attempt()
        except TASK_ENDINGS:
            raise
        except BaseException:  # an engine or a policy may raise any; the client gets the error of the lost replica
            logger.exception("request cannot be moved")
            outcome = None
        if isinstance(outcome, str):
            move.need = outcome
        else:
            move.outcome.set_result(outcome)
            self._moves.remove(move)
