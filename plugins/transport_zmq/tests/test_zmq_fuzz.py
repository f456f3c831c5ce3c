from __future__ import annotations

import random

import pytest

from benchmarks.links import TALK, damage, run_fuzz

MESSAGES = 10_000


@pytest.mark.slow
async def test_ten_thousand_ill_messages_harm_nobody() -> None:
    outcome = await run_fuzz(MESSAGES, seed=7)
    print(outcome)
    assert outcome.find_faults() == []
    assert outcome.accepted > MESSAGES / 100


def test_damage_is_mostly_real() -> None:
    rng = random.Random(1)
    damaged = [damage(message, rng) != message for message in TALK for _ in range(100)]
    assert 0.6 < sum(damaged) / len(damaged) < 1
