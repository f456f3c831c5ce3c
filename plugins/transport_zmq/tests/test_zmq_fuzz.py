from __future__ import annotations

import random

import pytest
import zmq

from benchmarks.links import TALK, damage, run_fuzz
from parallax_transport_zmq.link import ZmqLink


@pytest.mark.slow
async def test_ill_messages_harm_nobody() -> None:
    outcome = await run_fuzz(3000, seed=7)
    print(outcome)
    assert outcome.find_faults() == []
    assert outcome.accepted > 30


@pytest.mark.slow
async def test_attack_finds_out_a_node_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def hear(link: ZmqLink, message: zmq.Frame) -> None:
        link._was_heard = True
        link._read(message.buffer)

    monkeypatch.setattr(ZmqLink, "hear", hear)
    outcome = await run_fuzz(400, seed=7)
    assert "errors were raised" in outcome.find_faults()


def test_damage_is_mostly_real() -> None:
    rng = random.Random(1)
    damaged = [damage(message, rng) != message for message in TALK for _ in range(100)]
    assert 0.6 < sum(damaged) / len(damaged) < 1
