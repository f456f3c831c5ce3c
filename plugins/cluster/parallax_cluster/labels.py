"""Labels of machines, such as ``room=attic``, and the rules by which they limit a placement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from parallax_core.api import ClusterProfile, NodeProfile, PlacementProblem, UsageError

WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
"""The form of a key, and of a value: as in Kubernetes, at most 63 characters."""
MOST_LABELS = 32
"""The most labels of a machine."""
Labels = tuple[tuple[str, str], ...]
"""Keys with their values, in the order of the keys."""


def read_labels(given: Iterable[str], option: str) -> Labels:
    """Return the labels in texts ``KEY=VALUE``; of a key that is given twice, the last.

    Raises:
        UsageError: if a text has another form, or there are too many.
    """
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not is_label(key, value):
            message = f"{option} {text!r} is not KEY=VALUE"
            raise UsageError(message, "up to 63 letters, digits, '-', '_', '.' and '/' each, such as room=attic")
        found[key] = value
    if len(found) > MOST_LABELS:
        raise UsageError(f"{len(found)} labels are given", f"a machine has at most {MOST_LABELS}")
    return tuple(sorted(found.items()))


def is_label(key: str, value: str) -> bool:
    """Return whether a label has the form of one."""
    return bool(WORD.fullmatch(key) and WORD.fullmatch(value))


def write_labels(labels: Labels) -> str:
    """Return labels as text."""
    return ", ".join(f"{key}={value}" for key, value in labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRules:
    """Limits a placement to labelled nodes, and each pipeline to one failure domain."""

    selector: Labels = ()
    """The labels that a node must have."""
    spread_by: str = ""
    """The key whose values are failure domains: each pipeline has its nodes in one; empty: they may be anywhere."""
    same: str = ""
    """A further key whose values no pipeline mixes; every node has it. Empty: none."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys whose values divide nodes among pipelines."""
        return tuple(filter(None, (self.spread_by, self.same)))

    def select(self, cluster: ClusterProfile) -> tuple[ClusterProfile, dict[str, str]]:
        """Return a cluster with the nodes that may have layers, and why the others may not, by name."""
        if not (self.selector or self.spread_by):
            return cluster, {}
        barred = {node.name: reason for node in cluster.nodes if (reason := self._find_obstacle(node))}
        nodes = tuple(node for node in cluster.nodes if node.name not in barred)
        return replace(cluster, nodes=nodes), barred

    def is_in_one(self, cluster: ClusterProfile, names: Iterable[str]) -> bool:
        """Return whether nodes of a cluster, by name, are in the same failure domain."""
        domains = {node.name: self._find_domain(node) for node in cluster.nodes} if self.keys else {}
        return len({domains[name] for name in names if name in domains}) <= 1

    def divide(self, problem: PlacementProblem) -> Mapping[str, PlacementProblem]:
        """Return the problem of each domain, by its name; the same problem by an empty name without domains."""
        if not self.keys:
            return {"": problem}
        domains: dict[str, list[NodeProfile]] = {}
        for node in problem.cluster.nodes:
            domains.setdefault(self._find_domain(node), []).append(node)
        return {name: _limit(problem, nodes) for name, nodes in sorted(domains.items())}

    def describe_missing(self) -> str:
        """Return, in words, the labels that no node has."""
        wanted = [write_labels(self.selector)] if self.selector else []
        return f"no node has the labels that are needed: {', '.join([*wanted, *filter(None, [self.spread_by])])}"

    def _find_domain(self, node: NodeProfile) -> str:
        labels = dict(node.labels)
        return ", ".join(labels[key] for key in self.keys)

    def _find_obstacle(self, node: NodeProfile) -> str:
        labels = dict(node.labels)
        if missing := [(key, value) for key, value in self.selector if labels.get(key) != value]:
            return f"it is not labelled {write_labels(tuple(missing))}, which node_selector asks for"
        if self.spread_by and self.spread_by not in labels:
            return f"it has no label {self.spread_by}, by which replicas are spread"
        return ""


def _limit(problem: PlacementProblem, nodes: list[NodeProfile]) -> PlacementProblem:
    """Return a problem with these nodes only, and with the current pipelines that have no others."""
    names = {node.name for node in nodes}
    current = problem.current
    if current is not None:
        kept = tuple(each for each in current.pipelines if all(stage.node in names for stage in each))
        current = replace(current, pipelines=kept) if kept else None
    return replace(problem, cluster=replace(problem.cluster, nodes=tuple(nodes)), current=current)


ANYWHERE = LabelRules()
"""Every node may have layers, and be in a pipeline with any other."""
