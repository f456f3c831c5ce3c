"""Limits of a head: the configured ones, or else derived from its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.stage import PoolInfo, StageInfo
from parallax_core.contracts.status import ReplicaLimits
from parallax_core.contracts.transport import FrameLimits
from parallax_core.engine.waiting import MIN_SHARED

MOST_RUNNING = 1024
"""The most running sequences by default: with more, planning alone takes tens of milliseconds a step."""
FEW = 32
"""Running sequences allowed even if memory holds fewer of typical length: most are shorter, others are preempted."""
TYPICAL = 1024
"""Length of a typical sequence, in tokens."""
LEAST_WAITING = 256
"""The least default for the number of waiting requests."""
FRAMES = FrameLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The configured limits of a head; None derives a limit from the stages."""

    max_running: int | None = None
    """The most answers on the stages at the same time."""
    max_waiting: int | None = None
    """The most waiting requests; further ones are refused."""
    max_batch_tokens: int | None = None
    """The most tokens in a step; the stages' own limits also hold."""
    max_hold_s: float = 0.5
    """The longest time a batching policy may hold back a step, in seconds."""
    min_shared: int = MIN_SHARED
    """The least number of tokens a request must save to wait for another that computes the same prefix."""
    header_bytes: int = FRAMES.header_bytes
    """The most bytes in the header of a step, and in that of its result."""


def find_limits(wanted: Limits, stages: Sequence[StageInfo]) -> ReplicaLimits:
    """Return the configured limits, with the missing ones derived from the stages."""
    tokens = min(_find_most_tokens(stages), wanted.max_batch_tokens or math.inf)
    max_batch_tokens = max(1, int(tokens))
    max_running = wanted.max_running or derive_running(stages, max_batch_tokens)
    return ReplicaLimits(
        max_running=max_running,
        max_waiting=max(LEAST_WAITING, 2 * max_running) if wanted.max_waiting is None else wanted.max_waiting,
        max_batch_tokens=max_batch_tokens,
    )


def derive_running(stages: Sequence[StageInfo], max_batch_tokens: int) -> int:
    """Return the default number of running sequences.

    Enough to give every stage a step of its own with the number of rows that saturates its backend, while decodes leave
    half of a step to prompts. At most what memory holds of sequences of typical length, and at most the pages of
    the smallest pool, since each sequence takes a page of every pool.
    """
    pools = [pool for stage in stages for pool in stage.pools]
    rows = min(_find_rows(stage, max_batch_tokens) for stage in stages)
    longest = min(TYPICAL, *(stage.context_length for stage in stages))
    room = min(_count_sequences(pool, longest, max_batch_tokens) for pool in pools)
    held = min(pool.num_pages for pool in pools)
    return max(1, min(MOST_RUNNING, len(stages) * rows, max(FEW, room), held))


def _find_rows(stage: StageInfo, max_batch_tokens: int) -> int:
    """Return the most decodes a step of a stage should have."""
    half = max(1, max_batch_tokens // 2)
    return min(half, stage.saturation_rows) if stage.saturation_rows else half


def _count_sequences(pool: PoolInfo, length: int, max_batch_tokens: int) -> int:
    """Return the number of sequences of ``length`` tokens that a pool holds."""
    if pool.kind == "state":
        return pool.num_pages
    if pool.kind == "window":
        length = min(length, pool.window + pool.rewind + max_batch_tokens)
    return pool.num_pages // -(-length // pool.page_size)


def _find_most_tokens(stages: Sequence[StageInfo]) -> int:
    """Return the most tokens of a step that every stage can compute and whose hidden states fit into a frame."""
    specs = [stage.takes for stage in stages] + [stage.gives for stage in stages]
    token_bytes = max(sum(spec.token_bytes for spec in each) for each in specs)
    carried = (FRAMES.frame_bytes - FRAMES.header_bytes) // token_bytes if token_bytes else math.inf
    return int(min(carried, *(stage.max_batch_tokens for stage in stages)))
