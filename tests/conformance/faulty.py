"""Runs the kit for stages on toys with planted faults."""

from __future__ import annotations

import functools

from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.memory import Memory
from parallax_core.testing.paged import PagedLayers
from parallax_core.testing.toy import Sizes, ToyStage
from tests.conformance.harness import run_test
from tests.conformance.test_toy import ToyKit

SIZES = Sizes(num_pages=16, state_pages=16)
FULL: tuple[PoolKind, ...] = ("full", "full")
Part = type[ToyStage] | type[PagedLayers] | type[Memory]


def find_fault(part: Part, test: str, kinds: tuple[PoolKind, ...] = FULL, sizes: Sizes = SIZES) -> str:
    """Run a test of the kit on a toy in which ``part`` is replaced; return the failure it found.

    The kit gets no reference model: it has to find the fault from the stage alone. The same test must pass on the
    healthy toy, so that the failure is due to the fault.
    """
    assert find_healthy_fault(test, kinds, sizes) == ""
    return run_test(make_kit(make_stage(part), kinds, sizes), test)


@functools.cache
def find_healthy_fault(test: str, kinds: tuple[PoolKind, ...], sizes: Sizes) -> str:
    """Run a test of the kit on the healthy toy, once for all faults; return the failure it found."""
    return run_test(make_kit(ToyStage, kinds, sizes), test)


def make_kit(stage: type[ToyStage], kinds: tuple[PoolKind, ...], sizes: Sizes) -> type[ToyKit]:
    changes = {"stage": stage, "kinds": kinds, "sizes": sizes, "compute_logits": lambda _, tokens: None}
    return type("FaultyKit", (ToyKit,), changes)


def make_stage(part: Part) -> type[ToyStage]:
    if issubclass(part, ToyStage):
        return part
    layers = type("FaultyLayers", (PagedLayers,), {"memory_type": part}) if issubclass(part, Memory) else part
    return type("FaultyStage", (ToyStage,), {"layers_type": layers})
