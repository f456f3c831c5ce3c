"""What an engine says of itself is refused beyond its limits, and not at them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, PoolUse
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.contracts.value import LARGEST
from parallax_core.wire.base import MOST_NAME, MOST_TEXT
from parallax_core.wire.errors import BadFrame
from parallax_engines.messages import MOST_LOGPROBS, MOST_POOLS, Deltas, TokenDelta, check_engine, check_stats

INFO = EngineInfo(
    num_layers=1, vocab_size=1, context_length=1, max_running=1, max_batch_tokens=1, seed="exact", device="cpu"
)
SIZES = ("num_layers", "vocab_size", "context_length", "max_running", "max_batch_tokens")
POOL = PoolUse(stage=0, kind="full", used=0, total=0)
SCORE = (1, -0.5, ())


@pytest.mark.parametrize(
    "changes",
    [
        *({name: LARGEST} for name in (*SIZES, "weight_bytes")),
        {"weight_bytes": 0, "max_logprobs": 0},
        {"max_answers": MAX_ANSWERS, "max_logprobs": MOST_LOGPROBS},
        {"device": "x" * MOST_TEXT, "dtype": "x" * MOST_TEXT},
    ],
)
def test_engine_at_its_limits_is_taken(changes: dict[str, Any]) -> None:
    check_engine(replace(INFO, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        *({name: number} for name in SIZES for number in (0, LARGEST + 1)),
        *({"max_answers": number} for number in (0, MAX_ANSWERS + 1)),
        *({"max_logprobs": number} for number in (-1, MOST_LOGPROBS + 1)),
        *({"weight_bytes": number} for number in (-1, LARGEST + 1)),
        *({name: word} for name in ("device", "dtype") for word in ("x" * (MOST_TEXT + 1), "\x1b[2J")),
    ],
)
def test_engine_beyond_its_limits_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        check_engine(replace(INFO, **changes))


def test_log_probabilities_are_those_of_all_tokens_or_of_none() -> None:
    Deltas((TokenDelta(0, tokens=(1, 2)), TokenDelta(0, tokens=(1, 2), logprobs=(SCORE, SCORE)))).check()
    with pytest.raises(BadFrame, match="only some tokens"):
        Deltas((TokenDelta(0, tokens=(1, 2), logprobs=(SCORE,)),)).check()


def test_statistics_at_their_limits_are_taken() -> None:
    largest = PoolUse(stage=LARGEST, kind="x" * MOST_NAME, used=LARGEST, total=LARGEST)
    check_stats(EngineStats(running=LARGEST, requests_lost=LARGEST, pools=(largest, *(POOL,) * (MOST_POOLS - 1))))


@pytest.mark.parametrize(
    "changes",
    [
        {"running": -1},
        {"requests_lost": LARGEST + 1},
        {"pools": (POOL,) * (MOST_POOLS + 1)},
        {"pools": (POOL, replace(POOL, stage=LARGEST + 1))},
        {"pools": (POOL, replace(POOL, total=LARGEST + 1))},
        {"pools": (replace(POOL, used=-1),)},
        {"pools": (replace(POOL, kind="x" * (MOST_NAME + 1)),)},
        {"pools": (replace(POOL, kind="\x07"),)},
    ],
)
def test_statistics_beyond_their_limits_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        check_stats(replace(EngineStats(), **changes))
