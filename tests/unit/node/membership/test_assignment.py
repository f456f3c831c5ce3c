from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from parallax_core.base.ids import Epoch
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Join

WHOLE = StageAssignment(stage=0, layers=None, model="m", backend="toy")
PART = StageAssignment(stage=1, layers=LayerRange(2, 4), model="m", backend="toy")


def make_node(name: str = "mini/7", backends: tuple[str, ...] = ("toy",), **loaded: Any) -> JoinedNode:
    return cast("JoinedNode", SimpleNamespace(name=name, join=Join("tcp://x:1", backends, "here", 0, **loaded)))


def test_layers_0_to_0_stand_for_the_whole_model() -> None:
    told = WHOLE.assign(Epoch(3))
    assert (told.epoch, told.start, told.stop) == (3, 0, 0)
    assert (told.holds_start, told.holds_stop, told.memory_share) == (0, 0, 0.0)
    told = PART.assign(Epoch(3))
    assert (told.start, told.stop, told.holds_start, told.holds_stop) == (2, 4, 0, 0)


@pytest.mark.parametrize(
    ("role", "node", "suits"),
    [
        (WHOLE, make_node(), 2),
        (WHOLE, make_node(model="m"), 3),
        (WHOLE, make_node(model="m", start=2, stop=4), 2),
        (PART, make_node(model="m", start=2, stop=4), 3),
        (PART, make_node(model="other", start=2, stop=4), 2),
        (PART, make_node(model="m"), 2),
        (PART, make_node(backends=("other",), model="m", start=2, stop=4), 0),
    ],
)
def test_node_that_has_just_these_layers_suits_best(role: StageAssignment, node: JoinedNode, suits: int) -> None:
    assert role.fit(node) == suits
