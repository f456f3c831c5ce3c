"""Measures the round trip and the bandwidth of a link between two nodes, over the transport in use.

A probe has the link for itself: it is a connection of its own, made for the measurement and closed after it. The node
that connects sends frames, and the other end answers each with a small one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from parallax_core.base.errors import PeerLost
from parallax_core.cluster.link_estimate import LinkSample
from parallax_core.contracts.transport import Frame, Link

PROBE, ANSWER = b"probe", b"answer"
SMALL_PROBES = 5
LARGE_BYTES = 2**18
"""Bytes of the large message: a few milliseconds on a fast link, and two seconds at one megabit per second."""
PROBE_S = 10.0
"""Seconds after which a probe gives up."""


async def probe_link(
    link: Link, *, with_bandwidth: bool = True, clock: Callable[[], float] = time.perf_counter
) -> LinkSample:
    """Return a sample of a link whose other end runs `answer_probes`.

    The first small message warms the link up and does not count; the round trip is the median of the others.

    Raises:
        PeerLost: if the peer is gone, or answers with something else.
        TimeoutError: if it does not answer within `PROBE_S`.
    """
    async with asyncio.timeout(PROBE_S):
        times = [await _time_probe(link, Frame(PROBE), clock) for _ in range(1 + SMALL_PROBES)]
        round_trip_s = statistics.median(times[1:])
        if not with_bandwidth:
            return LinkSample(round_trip_s)
        large_s = await _time_probe(link, Frame(PROBE, (bytes(LARGE_BYTES),)), clock)
    return LinkSample(round_trip_s, large_s, LARGE_BYTES)


async def answer_probes(link: Link) -> None:
    """Answer the probes of the peer until it closes the link, or sends something else."""
    try:
        while (await link.receive()).header == PROBE:
            await link.send(Frame(ANSWER))
    except PeerLost:
        pass
    finally:
        await link.close()


async def _time_probe(link: Link, frame: Frame, clock: Callable[[], float]) -> float:
    begun = clock()
    await link.send(frame)
    answer = await link.receive()
    if answer.header != ANSWER:
        raise PeerLost(f"node {link.peer!r} answered a probe with something else")
    return clock() - begun
