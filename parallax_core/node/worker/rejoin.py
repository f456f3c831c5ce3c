"""Joins a head, and joins it again whenever it is lost, also if it has another address by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import IncompatibleNode, ParallaxError, PeerLost, UnusableAddress
from parallax_core.node.worker.session import WorkerSession
from parallax_core.wire.membership import Join

AGAIN_S = (0.5, 1.0, 2.0)
"""Seconds before each attempt to join again; the last value repeats."""
STEADY_S = 5.0
"""Seconds after which a lost head is looked for as if it had not been lost before."""
TRIES = 2
"""Attempts at an address before the next one is tried."""

SeekHead = Callable[[float], Awaitable[Sequence[str]]]
"""Returns the addresses at which a head is found, within the given seconds; none if it is not."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HeadPlace:
    """A head, where it is, and the name by which a node connects to it. The address changes when the head moves."""

    address: str
    head: str
    node: str


async def serve_again(
    session: WorkerSession, place: HeadPlace, join: Join, seek: SeekHead | None = None, tries: int | None = None
) -> None:
    """Serve the head at ``place`` until this node leaves; whenever it is lost, rejoin it where ``seek`` finds it.

    It turns to the standbys of the head as well, of which one may have taken over. It tries that ``tries`` times, or
    for ever.

    Raises:
        IncompatibleNode: if the head runs a version of Parallax with which this node cannot work.
        PeerLost: if the head is lost while this node leaves, or after all tries.
        StageLost: if the stage is lost; see `WorkerSession.serve`.
        UnusableAddress: if nothing can connect to the address that was given.
    """
    loop, search = asyncio.get_running_loop(), HeadSearch(session, place, seek)
    while True:
        begun = loop.time()
        try:
            await session.serve(place.address, place.head, join)
        except (PeerLost, UnusableAddress) as error:
            if loop.time() - begun > STEADY_S:
                search.restart()
            if search.is_over(error) or search.num_failures == tries:
                raise
            await search.turn(error)
        else:
            return


class HeadSearch:
    """Looks for a head that was lost: where it was, where it is found, and at the addresses of its standbys in turn."""

    def __init__(self, session: WorkerSession, place: HeadPlace, seek: SeekHead | None) -> None:
        """Begin at ``place``, which is changed."""
        self._session, self._place, self._seek = session, place, seek
        self._first = self._known = place.address
        """Where the user said that the head is, and where it was last. It may serve there again."""
        self._unusable: set[str] = set()
        """The addresses to which this node cannot connect, such as those of another transport."""
        self.num_failures = 0
        """The attempts since the head was lost."""

    def restart(self) -> None:
        """Begin where the head is now: it was there for a while."""
        self._known, self.num_failures = self._place.address, 0

    def is_over(self, error: ParallaxError) -> bool:
        """Return whether it is of no use to look any further."""
        if isinstance(error, UnusableAddress):
            return self._place.address == self._known
        return self._session.is_leaving or isinstance(error, IncompatibleNode)

    async def turn(self, error: ParallaxError) -> None:
        """Wait a moment, and choose the address to try next."""
        address, reason = self._place.address, f"{error.message}; {error.hint}" if error.hint else error.message
        if isinstance(error, UnusableAddress):
            self._unusable.add(address)
        wait_s = AGAIN_S[min(self.num_failures, len(AGAIN_S) - 1)]
        self.num_failures += 1
        logger.warning("no head at %s, trying again in %g s: %s", address, wait_s, reason)
        found, _ = await asyncio.gather(_seek(self._seek, wait_s), asyncio.sleep(wait_s))
        services = self._session.services
        places = dict.fromkeys([self._known, *found, *services.heads, self._first])
        usable = [each for each in places if each not in self._unusable]
        self._place.address = usable[self.num_failures // TRIES % len(usable)]
        services.choose_head(self._place.address)


async def _seek(seek: SeekHead | None, timeout_s: float) -> Sequence[str]:
    if seek is None:
        return ()
    try:
        return await seek(timeout_s)
    except ParallaxError as error:
        logger.debug("the head is not looked for: %s", error.message)
        return ()
