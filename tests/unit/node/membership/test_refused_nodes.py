"""What is logged of nodes that are turned away."""

from __future__ import annotations

import logging

import pytest

from parallax_core.node.membership.refused_nodes import MOST_REMEMBERED, RefusedNodes


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_node_that_tries_again_is_warned_of_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedNodes()
    for node, reason in (("a", "old"), ("a", "old"), ("b", "old"), ("a", "late"), ("a", "late"), ("a", "old")):
        refused.note(node, reason)
    assert [warning.removeprefix("node turned away node=") for warning in list_warnings(caplog)] == [
        "a: old",
        "b: old",
        "a: late",
        "a: old",
    ]


def test_only_some_nodes_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedNodes()
    for number in range(MOST_REMEMBERED + 1):
        refused.note(str(number), "old")
    refused.note("1", "old")
    refused.note("0", "old")
    assert len(list_warnings(caplog)) == MOST_REMEMBERED + 2
