from __future__ import annotations

from parallax_core.config.worker import name_node


def test_name_of_a_node_suits_a_key() -> None:
    assert name_node(12).endswith("/12")
    assert 0 < len(name_node(12).partition("/")[0]) <= 64
