"""How many pages each pool has: the memory there is, shared out so that no pool runs dry long before the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.stage import MOST_PAGES, PoolInfo

Kind = Literal["full", "window", "latent", "state"]

PAGE_SIZE = 16
"""Tokens per page."""
REWIND = 64
"""How far behind its end a sequence with windows can be forked or truncated."""
CHECKPOINT = 256
"""Where chunks of sequences with states end, so that what begins alike can be shared."""
MOST_SEQUENCES = 256
"""Memory for more sequences of full length than this is left to others."""
TYPICAL = 1024
"""Tokens of a sequence by which memory is shared out between pools."""
KIBI = 1024


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to plan with."""

    num_bytes: float
    """Memory for all pools."""
    context_length: int
    """The longest sequence, in tokens."""
    chunk: int
    """The most tokens in a step."""
    sequences: int = 0
    """How many run at once, if that is known: then there are states for twice as many, if memory allows."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one pool could do with."""

    kind: Kind
    window: int
    page_bytes: int
    pages_each: int
    """Pages of a typical sequence."""
    most: int
    """Pages beyond which there is no use."""


def plan_pools(sizes: Mapping[tuple[Kind, int], int], room: Room) -> tuple[PoolInfo, ...]:
    """Return the pools that fit into the memory there is, in the order given.

    Args:
        sizes: for the kind and the window of each pool (0: none), the bytes that a token takes in all layers together;
            in a pool of states, those that a sequence takes.
        room: what there is.

    Raises:
        ParallaxError: if not even one page of each fits.
    """
    needs = [_find_need(kind, window, num_bytes, room) for (kind, window), num_bytes in sizes.items()]
    least = sum(need.page_bytes for need in needs)
    if least > room.num_bytes:
        message = f"a page of each pool takes {format_bytes(least)}, and there are {format_bytes(room.num_bytes)}"
        raise ParallaxError(message, "close other programs, or choose a smaller model")
    counts = _share_out(needs, room.num_bytes)
    return tuple(_make_info(need, count) for need, count in zip(needs, counts, strict=True))


def format_bytes(size: float) -> str:
    """Return ``size`` in words, such as ``1.3 GiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < KIBI:
            return f"{size:.0f} {unit}"
        size /= KIBI
    return f"{size:.1f} GiB"


def _find_need(kind: Kind, window: int, num_bytes: int, room: Room) -> Need:
    if kind == "state":
        return Need(kind, window, num_bytes, 1, max(MOST_SEQUENCES, 2 * room.sequences))
    longest = room.context_length
    if kind == "window":
        longest = min(longest, window + REWIND + room.chunk + PAGE_SIZE)
    pages_each = math.ceil(min(longest, TYPICAL) / PAGE_SIZE)
    most = min(MOST_PAGES, MOST_SEQUENCES * math.ceil(longest / PAGE_SIZE))
    return Need(kind, window, num_bytes * PAGE_SIZE, pages_each, most)


def _share_out(needs: Sequence[Need], num_bytes: float) -> list[int]:
    """Return the pages of each pool: as many typical sequences as fit; what one has no use for, the others get."""
    counts = [0] * len(needs)
    hungry = set(range(len(needs)))
    while hungry:
        left = num_bytes - sum(
            counts[index] * need.page_bytes for index, need in enumerate(needs) if index not in hungry
        )
        each = sum(needs[index].page_bytes * needs[index].pages_each for index in hungry)
        for index in hungry:
            counts[index] = max(1, int(left * needs[index].pages_each // each))
        full = {index for index in hungry if counts[index] >= needs[index].most}
        for index in full:
            counts[index] = needs[index].most
        if not full:
            break
        hungry -= full
    return counts


def _make_info(need: Need, num_pages: int) -> PoolInfo:
    if need.kind == "state":
        return PoolInfo(kind="state", page_size=1, num_pages=num_pages, checkpoint_every=CHECKPOINT)
    rewind = REWIND if need.kind == "window" else 0
    return PoolInfo(kind=need.kind, page_size=PAGE_SIZE, num_pages=num_pages, window=need.window, rewind=rewind)
