"""Divides memory among the page pools of a stage, so that no pool runs out long before the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax_core.api import MOST_PAGES, ParallaxError, PoolInfo, PoolKind, format_bytes

PAGE_SIZE = 16
"""Tokens per page."""
REWIND = 64
"""The number of tokens before its end at which a sequence with windows can still be forked or truncated."""
CHECKPOINT = 256
"""Prefill chunks of sequences with states end at multiples of this number of tokens, so that prefixes are shared."""
MOST_SEQUENCES = 256
"""The most sequences of full length that a pool is sized for; further memory goes to other pools."""
TYPICAL = 1024
"""Length of a typical sequence, in tokens; memory is divided for sequences of this length."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory and limits to plan with."""

    num_bytes: float
    """Bytes of memory for all pools."""
    context_length: int
    """The longest sequence, in tokens."""
    chunk: int
    """The most tokens in a step."""
    sequences: int = 0
    """The number of running sequences, to make states for twice as many if memory allows; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Need:
    """The demand of one pool."""

    kind: PoolKind
    window: int
    page_bytes: int
    pages_each: int
    """The number of pages of a typical sequence."""
    most: int
    """The most useful number of pages."""


def plan_pools(sizes: Mapping[tuple[PoolKind, int], int], room: Room) -> tuple[PoolInfo, ...]:
    """Return the pools that fit into the available memory, in the order given.

    Args:
        sizes: by the kind and window (0: none) of each pool, the bytes that a token takes in all layers together; for
            a pool of states, the bytes that a sequence takes.
        room: the memory and limits.

    Raises:
        ParallaxError: if not even one page of each fits, or the context has no tokens.
    """
    if room.context_length < 1:
        raise ParallaxError(f"the model has a context of {room.context_length} tokens", "its config.json is damaged")
    needs = [_find_need(kind, window, num_bytes, room) for (kind, window), num_bytes in sizes.items()]
    least = sum(need.page_bytes for need in needs)
    if least > room.num_bytes:
        message = f"one page of each pool takes {format_bytes(least)}, but {format_bytes(room.num_bytes)} are free"
        raise ParallaxError(message, "close other programs, or choose a smaller model")
    counts = _share_out(needs, room.num_bytes)
    return tuple(_make_info(need, count) for need, count in zip(needs, counts, strict=True))


def _find_need(kind: PoolKind, window: int, num_bytes: int, room: Room) -> Need:
    if kind == "state":
        return Need(kind, window, num_bytes, 1, max(MOST_SEQUENCES, 2 * room.sequences))
    longest = room.context_length
    if kind == "window":
        longest = min(longest, window + REWIND + room.chunk + PAGE_SIZE)
    pages_each = math.ceil(min(longest, TYPICAL) / PAGE_SIZE)
    most = min(MOST_PAGES, MOST_SEQUENCES * math.ceil(longest / PAGE_SIZE))
    return Need(kind, window, num_bytes * PAGE_SIZE, pages_each, most)


def _share_out(needs: Sequence[Need], num_bytes: float) -> list[int]:
    """Return the number of pages of each pool, for equally many typical sequences; surplus goes to the other pools."""
    counts = [need.most for need in needs]  # of pools that take no memory, too
    unfilled = {index for index, need in enumerate(needs) if need.page_bytes}
    while unfilled:
        left = num_bytes - sum(
            counts[index] * need.page_bytes for index, need in enumerate(needs) if index not in unfilled
        )
        each = sum(needs[index].page_bytes * needs[index].pages_each for index in unfilled)
        for index in unfilled:
            counts[index] = max(1, int(left * needs[index].pages_each // each))
        full = {index for index in unfilled if counts[index] >= needs[index].most}
        for index in full:
            counts[index] = needs[index].most
        if not full:
            break
        unfilled -= full
    return counts


def _make_info(need: Need, num_pages: int) -> PoolInfo:
    if need.kind == "state":
        return PoolInfo(kind="state", page_size=1, num_pages=num_pages, checkpoint_every=CHECKPOINT)
    rewind = REWIND if need.kind == "window" else 0
    return PoolInfo(kind=need.kind, page_size=PAGE_SIZE, num_pages=num_pages, window=need.window, rewind=rewind)
