from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_transport_zmq.link import ZmqLink
from tests.support.link_fuzz import TALK, damage, run_fuzz

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("count", [600, pytest.param(3000, marks=pytest.mark.nightly)])
def test_ill_messages_harm_nobody(count: int) -> None:
    command = [sys.executable, "-m", "tests.support.link_fuzz", "--messages", str(count), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    print(done.stdout)
    outcome = json.loads(done.stdout)  # of a process of its own, since its memory is measured
    assert outcome["faults"] == []
    assert outcome["accepted"] > count / 100


@pytest.mark.slow
async def test_attack_finds_out_a_node_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(link: ZmqLink, *why: str) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(ZmqLink, "break_off", raise_error)
    outcome = await run_fuzz(100, seed=7)
    assert "errors were raised" in outcome.find_faults()


def test_damage_is_mostly_real() -> None:
    rng = random.Random(1)
    damaged = [damage(message, rng) != message for message in TALK for _ in range(100)]
    assert 0.6 < sum(damaged) / len(damaged) < 1
