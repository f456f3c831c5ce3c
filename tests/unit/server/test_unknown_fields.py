"""Fields of a body that nobody knows: one is kept to be refused, or all are dropped and named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from parallax_core.server.unknown_fields import IGNORED, drop_unknown

KNOWN = {"model", "prompt"}


@pytest.fixture
def ignored() -> Iterator[dict[str, None]]:
    """Have unknown fields be ignored; those that were."""
    found = dict[str, None]()
    token = IGNORED.set(found)
    yield found
    IGNORED.reset(token)


def test_body_without_unknown_fields_is_left_as_it_is(ignored: dict[str, None]) -> None:
    body: dict[str, Any] = {"prompt": "x", "model": "toy"}
    assert drop_unknown(body, KNOWN, "") is body
    assert ignored == {}


def test_first_of_a_million_unknown_fields_is_kept_to_be_refused() -> None:
    body: dict[str, Any] = {"model": "toy", **{f"field{number}": number for number in range(10**5)}, "prompt": "x"}
    assert drop_unknown(body, KNOWN, "") == {"model": "toy", "field0": 0, "prompt": "x"}
    assert len(body) == 10**5 + 2, "the body itself stays"


def test_unknown_fields_that_are_ignored_are_named_by_their_places(ignored: dict[str, None]) -> None:
    assert drop_unknown({"b": 1, "model": "toy", "a": 2}, KNOWN, "") == {"model": "toy"}
    assert drop_unknown({"a": 1}, KNOWN, "messages.0.") == {}
    assert drop_unknown({"a": 3}, KNOWN, "messages.0.") == {}
    assert list(ignored) == ["b", "a", "messages.0.a"]
