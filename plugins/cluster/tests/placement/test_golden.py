"""Plans and predictions of random clusters change only where somebody means them to."""

from __future__ import annotations

import json

import pytest

from plugins.cluster.tests.placement.golden_plans import GOLDEN, SEEDS, plan_scene


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_the_golden_ones(seed: int) -> None:
    assert plan_scene(seed) == json.loads(GOLDEN.read_text(encoding="utf-8"))[str(seed)]
