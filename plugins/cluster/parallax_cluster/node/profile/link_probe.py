"""Measures the round trip and the bandwidth of a link between two nodes, over the transport in use.

A probe has the link for itself: it is a connection of its own, made for the measurement and closed after it. The node
that connects sends messages, and the other end answers each with a small one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from parallax_cluster.link_estimate import LinkSample
from parallax_cluster.wire.profile import MOST_PROBE, Probe, ProbeAnswer
from parallax_core.api import PeerLost
from parallax_core.api.node import Channel

SMALL_PROBES = 5
LARGE_BYTES = MOST_PROBE
"""Bytes of the large message: a few milliseconds on a fast link, and two seconds at one megabit per second."""
PROBE_S = 10.0
"""Seconds after which a probe gives up, at both ends."""
MOST_PROBES = 16
"""The most probes that are answered on one link."""


async def probe_link(
    channel: Channel, *, with_bandwidth: bool = True, clock: Callable[[], float] = time.perf_counter
) -> LinkSample:
    """Return a sample of a link whose other end runs `answer_probes`.

    The first small message warms the link up and does not count; the round trip is the median of the others.

    Raises:
        PeerLost: if the peer is gone, or answers with something else.
        TimeoutError: if it does not answer within `PROBE_S`.
    """
    channel.learn([ProbeAnswer])
    async with asyncio.timeout(PROBE_S):
        times = [await _time_probe(channel, 0, clock) for _ in range(1 + SMALL_PROBES)]
        round_trip_s = statistics.median(times[1:])
        if not with_bandwidth:
            return LinkSample(round_trip_s)
        large_s = await _time_probe(channel, LARGE_BYTES, clock)
    return LinkSample(round_trip_s, large_s, LARGE_BYTES)


async def answer_probes(channel: Channel) -> None:
    """Answer at most `MOST_PROBES` probes, for `PROBE_S` at most, until the peer closes the link; then close it.

    A peer that sends something else is disconnected.
    """
    channel.learn([Probe])
    try:
        async with asyncio.timeout(PROBE_S):
            for _ in range(MOST_PROBES):
                if not isinstance(await channel.receive(), Probe):
                    break
                await channel.send(ProbeAnswer())
    except (PeerLost, TimeoutError):
        pass
    finally:
        await channel.leave()


async def _time_probe(channel: Channel, num_bytes: int, clock: Callable[[], float]) -> float:
    begun = clock()
    await channel.send(Probe(bytes(num_bytes)))
    answer = await channel.receive()
    if not isinstance(answer, ProbeAnswer):
        raise PeerLost(f"node {channel.peer!r} answered a probe with a {type(answer).__name__}")
    return clock() - begun
