"""Joins a head, and joins it again whenever it is lost, also if it has another address by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import ParallaxError, PeerLost
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
    """Serve the head at ``place`` until this node leaves; whenever it is lost, join it again, where ``seek`` finds it.

    It turns to the standbys of the head as well, of which one may have taken over. It tries that ``tries`` times, or
    for ever.

    Raises:
        PeerLost: if the head is lost while this node leaves, or after all tries.
        StageLost: if the stage is lost; see `WorkerSession.serve`.
        ParallaxError: if the address is invalid.
    """
    loop, known, num_failures = asyncio.get_running_loop(), place.address, 0
    while True:
        begun = loop.time()
        try:
            await session.serve(place.address, place.head, join)
        except PeerLost as error:
            if session.is_leaving:
                raise
            if loop.time() - begun > STEADY_S:
                known, num_failures = place.address, 0
            if num_failures == tries:
                raise
            wait_s = AGAIN_S[min(num_failures, len(AGAIN_S) - 1)]
            num_failures += 1
            reason = f"{error.message}; {error.hint}" if error.hint else error.message
            logger.warning("no head at %s, trying again in %g s: %s", place.address, wait_s, reason)
            found, _ = await asyncio.gather(_seek(seek, wait_s), asyncio.sleep(wait_s))
            terms = session.terms
            places = list(dict.fromkeys([known, *found, *(terms.others if terms is not None else ())]))
            place.address = places[num_failures // TRIES % len(places)]
            if terms is not None:
                terms.choose(place.address)
        else:
            return


async def _seek(seek: SeekHead | None, timeout_s: float) -> Sequence[str]:
    if seek is None:
        return ()
    try:
        return await seek(timeout_s)
    except ParallaxError as error:
        logger.debug("the head is not looked for: %s", error.message)
        return ()
