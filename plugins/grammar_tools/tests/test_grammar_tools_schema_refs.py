"""References of JSON schemas, by names and by pointers."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_grammar_tools.schema_refs import follow_references, localize_references, move_references

ONE = {"enum": ["a"]}
HOME = "https://example.org/s.json"


def refer(reference: str, own: str = "", name: str = "one", one: Any = ONE) -> dict[str, Any]:
    """Return a schema named ``own`` whose first item has a reference, and which defines ``one``."""
    return {**({"$id": own} if own else {}), "prefixItems": [{"$ref": reference}], "$defs": {name: one}}


@pytest.mark.parametrize(
    ("schema", "local"),
    [
        (refer("#/$defs/one", HOME), "#/$defs/one"),
        (refer("s.json#/$defs/one", HOME), "#/$defs/one"),
        (refer(f"{HOME}#/$defs/one", HOME), "#/$defs/one"),
        (refer("#", HOME), "#"),
        (refer("#/$defs/one", "urn:a:b"), "#/$defs/one"),
        (refer("#/$defs/%C3%A9~1%20", "Person", "é/ "), "#/$defs/%C3%A9~1%20"),
        (refer("#here", one={"$anchor": "here", **ONE}), "#/$defs/one"),
        (refer("#here", one={"$id": "#here", **ONE}), "#/$defs/one"),
        (refer("#/$defs/one", one={"$id": "x", **ONE}), "#/$defs/one"),
        (refer("x", one={"$id": "x", **ONE}), "#/$defs/one"),
        (refer("b/c", "http://e/a/", "o", {"$id": "b/", "not": {"$id": "c"}}), "#/$defs/o/not"),
        (
            refer("b/#c", "http://e/a/", "o", {"$id": "b/", "not": {"$anchor": "c"}}),
            "#/$defs/o/not",
        ),
        (refer("/other.json", HOME), "/other.json"),
        (refer("#gone", HOME), "#gone"),
    ],
)
def test_references_by_name_become_pointers(schema: dict[str, Any], local: str) -> None:
    found = localize_references(schema)
    assert found["prefixItems"] == [{"$ref": local}]
    assert "$id" not in found


def test_references_within_a_named_part_are_relative_to_it() -> None:
    part = {"$id": "part", "items": {"$ref": "#/$defs/one"}, "$defs": {"one": True}}
    found = localize_references({"$defs": {"part": part, "one": False}, "items": {"$ref": "#/$defs/one"}})
    assert found["$defs"]["part"]["items"] == {"$ref": "#/$defs/part/$defs/one"}
    assert found["items"] == {"$ref": "#/$defs/one"}


@pytest.mark.parametrize("values", [{"const": {"$id": "x", "$ref": "#"}}, {"properties": {"$id": {}, "$ref": ONE}}])
def test_values_and_names_of_fields_stay(values: dict[str, Any]) -> None:
    schema = {"$id": HOME, "items": values}
    assert localize_references(schema) == {"items": values}
    assert move_references({"items": values}, "#/$defs/x") == {"items": values}


def test_reference_that_is_no_uri_is_quoted() -> None:
    schema = refer("#/$defs/Map<é, int>[]", name="Map<é, int>[]")
    assert localize_references(schema)["prefixItems"] == [{"$ref": "#/$defs/Map%3C%C3%A9,%20int%3E%5B%5D"}]
    assert localize_references(refer("#/$defs/one")) == refer("#/$defs/one")


def test_moved_schema_refers_to_its_own_parts() -> None:
    moved = move_references({"items": {"$ref": "#"}, "not": [{"$ref": "#/a"}, {"$ref": "b#/a"}]}, "#/$defs/x")
    assert moved == {"items": {"$ref": "#/$defs/x"}, "not": [{"$ref": "#/$defs/x/a"}, {"$ref": "b#/a"}]}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#/$defs/a~1b%20c", ONE),
        ("#/anyOf/1", ONE),
        ("#/anyOf/2", None),
        ("#/anyOf/x", None),
        ("#/$defs/again", ONE),
        ("#/$defs/loop", None),
        ("#name", None),
        ("other", None),
    ],
)
def test_references_are_followed(reference: str, found: object) -> None:
    again = {"$ref": "#/anyOf/1"}
    root = {"$defs": {"a/b c": ONE, "again": again, "loop": {"$ref": "#/$defs/loop"}}, "anyOf": [True, ONE]}
    assert follow_references({"$ref": reference}, root) == found
    assert follow_references(True, root) is True
    assert follow_references({"$ref": "#"}, root) == root
