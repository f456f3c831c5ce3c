"""Checks of the messages of engines beyond their types."""

from __future__ import annotations

from dataclasses import fields

from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, PoolUse
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.contracts.value import LARGEST
from parallax_core.wire.base import MOST_TEXT
from parallax_core.wire.checks import MOST_NAME, check_parts, check_words, require
from parallax_core.wire.engine import Deltas, EngineOpened, EngineStatus, TokenDelta

MOST_POOLS = 64
"""The most pools in the statistics of an engine."""
MOST_LOGPROBS = 1024
"""The largest `EngineInfo.max_logprobs`."""


def check_engine_message(message: Deltas | EngineOpened | EngineStatus) -> None:
    """Check a message of an engine.

    Raises:
        BadFrame: if its fields do not fit each other; the message names the fault.
    """
    match message:
        case Deltas():
            for delta in message.deltas:
                check_delta(delta)
        case EngineOpened():
            check_engine(message.info)
            check_parts(message.weights_parts)
        case EngineStatus():
            check_words(message.reason)
            check_stats(message.stats)


def check_engine(info: EngineInfo) -> None:
    """Check that a node's description of its engine is plausible."""
    sizes = (info.num_layers, info.vocab_size, info.context_length, info.max_running, info.max_batch_tokens)
    require(all(0 < size <= LARGEST for size in sizes), "a size of an engine is out of range")
    require(0 < info.max_answers <= MAX_ANSWERS, "the most answers of an engine are out of range")
    require(0 <= info.max_logprobs <= MOST_LOGPROBS, "the most log-probabilities of an engine are out of range")
    require(0 <= info.weight_bytes <= LARGEST, "the size of an engine's weights is out of range")
    words = (info.device, info.dtype)
    require(all(len(word) <= MOST_TEXT for word in words), "a text of an engine is too long")
    check_words(*words)


def check_delta(delta: TokenDelta) -> None:
    """Check that log-probabilities fit the tokens, and that a message is safe to show."""
    require(len(delta.logprobs) in {0, len(delta.tokens)}, "only some tokens have log-probabilities")
    if delta.finish is not None:
        check_words(delta.finish.message)


def check_stats(stats: EngineStats) -> None:
    """Check the numbers of an engine's statistics."""
    counts = [getattr(stats, field.name) for field in fields(stats) if field.name != "pools"]
    require(all(0 <= count <= LARGEST for count in counts), "a number of an engine's statistics is out of range")
    require(len(stats.pools) <= MOST_POOLS, f"the statistics of an engine have {len(stats.pools)} pools")
    for pool in stats.pools:
        check_pool_use(pool)


def check_pool_use(use: PoolUse) -> None:
    """Check the numbers of a pool in a status."""
    require(all(0 <= count <= LARGEST for count in (use.stage, use.used, use.total)), "a pool's use is out of range")
    require(len(use.kind) <= MOST_NAME, "the kind of a pool is too long")
    check_words(use.kind)
