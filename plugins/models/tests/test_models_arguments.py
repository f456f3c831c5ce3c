"""Arguments that models write as plain text: how they are read, and what a grammar allows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from parallax_core.api import InvalidRequest
from parallax_models.parsers.schema_leaves import list_leaves
from parallax_models.parsers.text_patterns import FORMATS, match_whole
from parallax_models.parsers.xml_values import ArgumentWriter, list_kinds

ROOT: dict[str, Any] = {
    "properties": {
        "named": {"$ref": "#/$defs/text"},
        "const": {"const": "12"},
        "mixed": {"enum": ["true", 5]},
        "joined": {"allOf": [{"$ref": "#/$defs/text"}, {"maxLength": 3}]},
        "unknown": {"anyOf": [{"type": "string"}, {}]},
        "loop": {"anyOf": [{"$ref": "#/properties/loop"}, {"type": "null"}]},
    },
    "additionalProperties": {"type": "integer"},
    "$defs": {"text": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("named", {"string"}),
        ("const", {"string"}),
        ("mixed", {"string", "integer"}),
        ("joined", {"string"}),
        ("unknown", set()),
        ("loop", set()),
    ],
)
def test_types_are_found_behind_references_and_unions(name: str, kinds: set[str]) -> None:
    assert list_kinds(ROOT["properties"][name], ROOT) == kinds


def test_values_are_read_as_their_types_say() -> None:
    parts: list[str] = []
    writer = ArgumentWriter(ROOT, parts.append)
    for key, text in (("named", "12"), ("const", "12"), ("mixed", "true"), ("unknown", "12"), ("other", "7")):
        writer.begin_value(key)
        writer.add(text)
        writer.end_value()
    writer.end()
    assert json.loads("".join(parts)) == {"named": "12", "const": "12", "mixed": "true", "unknown": 12, "other": 7}


@pytest.mark.parametrize(
    ("part", "leaves"),
    [
        (True, [{}]),
        (False, []),
        ({"$ref": "#/$defs/text", "title": "T"}, [{"type": "string", "title": "T"}]),
        ({"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]}, [{"type": "string"}, {"type": "null"}]),
        (
            {"type": ["string", "integer"], "maxLength": 3, "minimum": 2},
            [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 2}],
        ),
        ({"allOf": [{"$ref": "#/$defs/text"}, {"maxLength": 3}]}, [{"type": "string", "maxLength": 3}]),
        ({"oneOf": [{"type": "string"}, {"const": 1}]}, [{"type": "string"}, {"const": 1}]),
        ({"oneOf": [{"type": "string"}, {}]}, [{"oneOf": [{"type": "string"}, {}]}]),
    ],
)
def test_schema_is_taken_apart(part: Any, leaves: list[Any]) -> None:
    assert list(list_leaves(part, ROOT)) == leaves


@pytest.mark.parametrize("part", [{"$ref": "#/gone"}, {"allOf": [{"maxLength": 3}, {"maxLength": 4}]}, 5])
def test_schema_that_cannot_be_taken_apart_is_refused(part: Any) -> None:
    with pytest.raises(InvalidRequest):
        list(list_leaves(part, ROOT))


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("date", ["2024-02-28", "1999-12-31"], ["2024-02-30", "2024-13-01", "24-1-1"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:30"], ["24:00:00Z", "1:00"]),
        ("date-time", ["2024-02-28T00:00:00Z"], ["2024-02-28 00:00:00"]),
        ("duration", ["P3D", "PT5M", "P1DT2H"], ["P", "PT", "3D"]),
        ("email", ["a.b+c@example.org"], ["a@", ".a@b", "a b@c"]),
        ("hostname", ["example.org", "a"], ["-a.org", "a..b"]),
        ("ipv4", ["0.0.0.1", "255.10.1.99"], ["256.1.1.1", "1.1.1"]),
        ("ipv6", ["::", "::1", "a::b", "1:2:3:4:5:6:7:8"], ["1:2", ":::"]),
        ("uri", ["https://example.org:80/a%20b?q=1#f", "mailto:a@b"], ["no scheme", "a:%2"]),
        ("uuid", ["0123abcd-0000-0000-0000-00000000ffff"], ["0123abcd"]),
    ],
)
def test_texts_of_a_format_match(form: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in [*right, *wrong] if re.fullmatch(FORMATS[form], text)] == right


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("^ab$", ["ab"]),
        ("ab", ["ab", "xaby", "abx", "ab$"]),
        ("^ab", ["ab", "abx", "ab$"]),
        (r"ab\$$", ["ab$"]),
        (r"[$^|]", ["ab$"]),
        ("^(ab|xaby)$", ["ab", "xaby"]),
        ("^ab|x$", None),
        ("(^ab)", None),
    ],
)
def test_pattern_of_a_part_is_made_one_of_the_whole(pattern: str, matches: list[str] | None) -> None:
    whole = match_whole(pattern)
    found = None if whole is None else [text for text in ("ab", "xaby", "abx", "ab$") if re.fullmatch(whole, text)]
    assert found == matches
