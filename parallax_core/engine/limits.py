"""How much a head takes on: what a user says, and else what its stages have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.stage import PoolInfo, StageInfo
from parallax_core.contracts.status import ReplicaLimits
from parallax_core.contracts.tensor import ITEM_BYTES
from parallax_core.contracts.transport import FrameLimits
from parallax_core.engine.waiting import MIN_SHARED

MOST_RUNNING = 1024
"""More sequences run only if a user says so: the head itself takes some ten milliseconds for a step of as many."""
FEW = 32
"""So many run even where there is not memory for as many of typical length: most are shorter, and some give way."""
TYPICAL = 1024
"""Tokens of a sequence of typical length."""
LEAST_WAITING = 256

FRAMES = FrameLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a head is told of how much to take on; None leaves a limit to what the stages have."""

    max_running: int | None = None
    """Answers on the stages at once."""
    max_waiting: int | None = None
    """Requests beside them; more are refused."""
    max_batch_tokens: int | None = None
    """Tokens in a step; never more than the stages compute at once."""
    max_hold_s: float = 0.5
    """For how long a batching policy may hold back what could run."""
    min_shared: int = MIN_SHARED
    """A request waits for another that is computing the same beginning if that saves it at least so many tokens."""
    header_bytes: int = FRAMES.header_bytes
    """What the header of a step, and that of its result, may have."""


def find_limits(wanted: Limits, stages: Sequence[StageInfo]) -> ReplicaLimits:
    """Return the limits that hold with these stages."""
    tokens = min(_find_most_tokens(stages), wanted.max_batch_tokens or math.inf)
    max_batch_tokens = max(1, int(tokens))
    max_running = wanted.max_running or derive_running(stages, max_batch_tokens)
    return ReplicaLimits(
        max_running=max_running,
        max_waiting=max(LEAST_WAITING, 2 * max_running) if wanted.max_waiting is None else wanted.max_waiting,
        max_batch_tokens=max_batch_tokens,
    )


def derive_running(stages: Sequence[StageInfo], max_batch_tokens: int) -> int:
    """Return how many sequences may run at once where nobody says.

    As many as keep every stage busy, each with a step of its own: up to what its backend says saturates it, and such
    that decodes leave half of a step to prompts. Not more than there is memory for, by sequences of typical length; and
    never more than there are pages, since each takes one of every pool.
    """
    pools = [pool for stage in stages for pool in stage.pools]
    rows = min(_find_rows(stage, max_batch_tokens) for stage in stages)
    longest = min(TYPICAL, *(stage.context_length for stage in stages))
    room = min(_count_sequences(pool, longest, max_batch_tokens) for pool in pools)
    held = min(pool.num_pages for pool in pools)
    return max(1, min(MOST_RUNNING, len(stages) * rows, max(FEW, room), held))


def _find_rows(stage: StageInfo, max_batch_tokens: int) -> int:
    """Return how many decodes a step of a stage should have at the most."""
    half = max(1, max_batch_tokens // 2)
    return min(half, stage.saturation_rows) if stage.saturation_rows else half


def _count_sequences(pool: PoolInfo, length: int, max_batch_tokens: int) -> int:
    """Return how many sequences of a length a pool holds."""
    if pool.kind == "state":
        return pool.num_pages
    if pool.kind == "window":
        length = min(length, pool.window + pool.rewind + max_batch_tokens)
    return pool.num_pages // -(-length // pool.page_size)


def _find_most_tokens(stages: Sequence[StageInfo]) -> int:
    """Return the most tokens of a step that every stage computes, and whose hidden states fit into a frame."""
    specs = [stage.takes for stage in stages] + [stage.gives for stage in stages]
    token_bytes = max(sum(spec.width * ITEM_BYTES[spec.dtype] for spec in each) for each in specs)
    carried = (FRAMES.frame_bytes - FRAMES.header_bytes) // token_bytes if token_bytes else math.inf
    return int(min(carried, *(stage.max_batch_tokens for stage in stages)))
