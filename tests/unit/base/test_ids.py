from __future__ import annotations

import pytest

from parallax_core.base.ids import further_node, holder_of, is_further, is_lease, lease_node, name_machine


@pytest.mark.parametrize("node", ["mini/12405", further_node("mini/12405", 2)])
@pytest.mark.parametrize("number", [0, 1, 10])
def test_lease_is_of_the_node_that_holds_its_layers(node: str, number: int) -> None:
    lease = lease_node(node, number)
    assert (holder_of(lease), name_machine(lease)) == (node, "mini")
    assert is_lease(lease) == (number > 0)
    assert is_further(lease) == is_further(node) == ("+" in node)
