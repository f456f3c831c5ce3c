"""Computes the most that flows through a network with capacities, and the paths it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

Vertex = tuple[str, int]
LEAST = 1e-9
"""Capacities below this count as zero."""


class FlowGraph:
    """Capacities between vertices.

    The flow is found by shortest augmenting paths (Edmonds and Karp, JACM 1972).
    """

    def __init__(self, source: Vertex, sink: Vertex) -> None:
        self._source = source
        self._sink = sink
        self._left: dict[Vertex, dict[Vertex, float]] = {}
        self._given: dict[tuple[Vertex, Vertex], float] = {}

    def add(self, one: Vertex, other: Vertex, capacity: float) -> None:
        """Add an edge from one vertex to another, at most one for each pair."""
        self._given[one, other] = capacity
        self._left.setdefault(one, {})[other] = capacity
        self._left.setdefault(other, {}).setdefault(one, 0.0)

    def find_most(self) -> float:
        """Return the most flow from the source to the sink. Call it once."""
        total = 0.0
        while path := self._find_path():
            flow = min(self._left[one][other] for one, other in path)
            for one, other in path:
                self._left[one][other] -= flow
                self._left[other][one] += flow
            total += flow
        return total

    def list_paths(self) -> Iterator[tuple[list[Vertex], float]]:
        """Yield paths from the source to the sink with their flow, which together make up the flow that was found."""
        used = {edge: given - self._left[edge[0]][edge[1]] for edge, given in self._given.items()}
        following: dict[Vertex, list[Vertex]] = {}
        for (one, other), flow in used.items():
            if flow > LEAST:
                following.setdefault(one, []).append(other)
        while following.get(self._source):
            path = [self._source]
            while path[-1] != self._sink:
                path.append(following[path[-1]][0])
            edges = list(pairwise(path))
            flow = min(used[edge] for edge in edges)
            for edge in edges:
                used[edge] -= flow
                if used[edge] <= LEAST:
                    following[edge[0]].remove(edge[1])
            yield path, flow

    def _find_path(self) -> list[tuple[Vertex, Vertex]]:
        """Return the edges of a shortest path with capacity left; none if there is no such path."""
        before: dict[Vertex, Vertex] = {self._source: self._source}
        queue = deque([self._source])
        while queue and self._sink not in before:
            one = queue.popleft()
            for other, left in self._left.get(one, {}).items():
                if left > LEAST and other not in before:
                    before[other] = one
                    queue.append(other)
        path, at = [], self._sink
        while at in before and at != self._source:
            path.append((before[at], at))
            at = before[at]
        return path
