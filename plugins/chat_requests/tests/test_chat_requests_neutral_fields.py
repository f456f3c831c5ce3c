"""Unsupported fields: accepted where they ask for nothing, and refused by name otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from parallax_chat_requests.neutral_fields import Tolerant


class Body(Tolerant):
    neutral = {"depth": (0, "none"), "flag": (False,), "gone": ()}  # noqa: RUF012 -- as in every body

    name: str = ""


@pytest.mark.parametrize("body", [{"depth": 0}, {"depth": "none"}, {"flag": False}, {"gone": None}, {"depth": None}])
def test_value_without_effect_is_accepted(body: dict[str, Any]) -> None:
    assert Body.model_validate({**body, "name": "a"}).model_dump() == {"name": "a"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"depth": 1}, "'depth' is not supported yet; leave it out or send 0 or 'none'"),
        ({"depth": False}, "'depth' is not supported yet"),
        ({"flag": 0}, "'flag' is not supported yet; leave it out or send false"),
        ({"gone": []}, "'gone' is not supported yet; leave it out"),
    ],
)
def test_other_values_are_refused_by_name(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Body.model_validate(body)
    assert refused.value.errors()[0]["msg"].startswith(message)


def test_schema_lists_the_values() -> None:
    assert Body.model_json_schema()["properties"]["depth"]["enum"] == [None, 0, "none"]
