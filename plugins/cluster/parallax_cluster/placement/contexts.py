"""Keeps nodes whose users limit the context out of plans for longer requests."""

from __future__ import annotations

from dataclasses import replace

from parallax_core.api import ClusterProfile, ServingGoal


def select_by_context(cluster: ClusterProfile, goal: ServingGoal) -> tuple[ClusterProfile, dict[str, str]]:
    """Return a cluster with the nodes that take the requests of a goal, and why the others do not, by name."""
    needed = goal.reserved_tokens
    short = {
        node.name: f"it takes requests of up to {node.max_context} tokens (max_context), and {needed} are planned for"
        for node in cluster.nodes
        if 0 < node.max_context < needed
    }
    return replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in short)), short


def describe_short_contexts(cluster: ClusterProfile, goal: ServingGoal, rest: str) -> str:
    """Return, in words, that nodes of a cluster are left out, since requests are longer than they take.

    ``rest`` says what the others lack; empty: there are no others.
    """
    limits = [node.max_context for node in cluster.nodes if 0 < node.max_context < goal.reserved_tokens]
    whole = f"the plan is for requests of {goal.reserved_tokens} tokens (prompt_tokens and output_tokens)"
    told = f"{whole}, and {len(limits)} of {len(cluster.nodes)} nodes take at most {max(limits)} (max_context)"
    return f"{told}; without them, {rest}" if rest else told
