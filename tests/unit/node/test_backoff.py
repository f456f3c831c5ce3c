from __future__ import annotations

import pytest

from parallax_core.base.errors import EngineFailed
from parallax_core.node import backoff
from parallax_core.node.backoff import WAITS_S, Backoff


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for thousandths of the seconds."""
    monkeypatch.setattr(backoff, "WAITS_S", tuple(wait_s / 1000 for wait_s in WAITS_S[:4]))


def test_waits_grow_from_none() -> None:
    assert WAITS_S[0] == 0
    assert list(WAITS_S) == sorted(set(WAITS_S))


async def test_first_attempt_is_made_at_once_and_later_ones_after_longer_and_longer_waits() -> None:
    told: list[str] = []
    waits = Backoff(told.append)
    for _ in range(6):
        await waits.wait("lost")
    between = [f"lost; trying again in {wait_s} s" for wait_s in ("0.0005", "0.001", "0.002", "0.002", "0.002")]
    assert told == ["lost", *(each for line in between for each in (line, "lost"))]
    waits.reset()
    told.clear()
    await waits.wait("lost again")
    assert told == ["lost again"]


async def test_attempts_end_after_so_many_failures_in_a_row() -> None:
    waits = Backoff(lambda _: None, most_failures=2)
    for _ in range(2):
        await waits.wait("lost")
    waits.reset()
    for _ in range(2):
        await waits.wait("lost")
    with pytest.raises(EngineFailed, match="given up after 2 failures in a row: lost"):
        await waits.wait("lost")
