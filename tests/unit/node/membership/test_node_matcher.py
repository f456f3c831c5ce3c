from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from parallax_core.node.membership.node_matcher import NodeMatcher, NodeRequest

NO_FITS: Mapping[str, int] = {}


@dataclass(eq=False)
class Named:
    """What a matcher knows of a node."""

    name: str


@dataclass
class Callers:
    """Makes requests, and counts how often they are asked about a node."""

    num_asked: int = 0
    made: list[NodeRequest] = field(default_factory=list)

    def make(self, name: str = "", fits: Mapping[str, int] = NO_FITS) -> NodeRequest:
        """Return a request by a node's name, or by how suitable nodes are; all others are at ``any``."""

        def fit(node: Any) -> int:
            self.num_asked += 1
            return fits.get(node.name, fits.get("any", 0)) if fits else int(node.name == name)

        made = NodeRequest(fit, name, asyncio.get_running_loop().create_future())
        self.made.append(made)
        return made


def match_all(waiting: list[Any], requests: list[NodeRequest]) -> tuple[Any, NodeRequest] | None:
    """Take the best of all pairs out of both lists, and return it."""
    pairs = [(request.fit(node), request, node) for request in requests for node in waiting]
    fit, request, node = max(pairs, key=lambda pair: pair[0], default=(0, None, None))
    if request is None or fit <= 0:
        return None
    waiting.remove(node)
    requests.remove(request)
    return node, request


@pytest.mark.parametrize("seed", range(20))
async def test_pairs_are_those_of_comparing_all_that_wait_with_all(seed: int) -> None:
    rng, matcher, callers = random.Random(seed), NodeMatcher(), Callers()
    waiting, requests = list[Any](), list[NodeRequest]()
    for number in range(60):
        if rng.random() < 0.5:
            node: Any = Named(f"n{number}")
            waiting.append(node)
            expected = match_all(waiting, requests)
            request = matcher.add_node(node)
            assert (node, request) == expected if expected else request is None
            if request is not None:
                matcher.remove_request(request)
        else:
            fits = {f"n{rng.randrange(60)}": rng.randrange(4) for _ in range(10)}
            request = callers.make(fits=fits | {"any": rng.randrange(2)})
            requests.append(request)
            expected = match_all(waiting, requests)
            found = matcher.add_request(request)
            assert (found, request) == expected if expected else found is None
            if found is not None:
                del matcher.nodes[found.name]
        assert list(matcher.nodes.values()) == waiting
        assert matcher.has_requests == bool(requests)


async def test_callers_that_name_their_nodes_are_not_compared_with_others() -> None:
    matcher, callers = NodeMatcher(), Callers()
    for number in range(100):
        assert matcher.add_request(callers.make(f"wanted/{number}")) is None
        assert matcher.add_node(Named(f"idle/{number}")) is None  # type: ignore[arg-type]
    assert callers.num_asked == 0
    assert matcher.add_node(Named("wanted/7")) is callers.made[7]  # type: ignore[arg-type]
    assert matcher.add_request(callers.make("idle/9")) is matcher.nodes["idle/9"]
    assert callers.num_asked == 2


async def test_caller_that_was_found_a_node_gets_no_second_one() -> None:
    matcher, callers = NodeMatcher(), Callers()
    first, second = callers.make(fits={"any": 1}), callers.make(fits={"any": 1})
    for request in (first, second):
        assert matcher.add_request(request) is None
    first.found.cancel()
    assert matcher.add_node(Named("a")) is second  # type: ignore[arg-type]
    for request in (second, first, first):
        matcher.remove_request(request)
    assert not matcher.has_requests
