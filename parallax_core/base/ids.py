"""Distinct types for ids, so that they cannot be mixed up, and the names of nodes."""

from typing import NewType

HEAD = "head"
"""The name of the head's node, unless a user names it."""

RequestId = NewType("RequestId", str)
"""A client's request, unique within a server."""

SeqId = NewType("SeqId", int)
"""A handle of a sequence on the stages; never reused within the life of an engine."""

Epoch = NewType("Epoch", int)
"""A number that a head raises when it builds, repairs or reloads a pipeline; older messages are discarded."""


def name_machine(node: str) -> str:
    """Return the name of the machine of a node, such as ``mini`` of ``mini/12405``."""
    return node.partition("/")[0]


def further_node(first: str, number: int) -> str:
    """Return the name of a further node that the node ``first`` has started on its machine."""
    return f"{first}+{number}"


def is_further(node: str) -> bool:
    """Return whether a node was started by another one of its machine."""
    return "+" in node


def lease_node(holder: str, number: int) -> str:
    """Return the name by which a lease of the node ``holder`` joins; its first lease is the node itself, number 0."""
    return f"{holder}~{number}" if number else holder


def is_lease(node: str) -> bool:
    """Return whether a name is a lease's; a lease runs in the process of the node with the layers."""
    return "~" in node


def holder_of(node: str) -> str:
    """Return the name of the node that holds the layers of a lease; that of any other node is itself."""
    return node.partition("~")[0]
