"""The end of a JSON value is found wherever the text is cut, and whatever follows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.json_scan import JsonScan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict | list | str))


@given(VALUES, st.text(), st.data())
def test_end_is_found_in_any_pieces(value: Any, rest: str, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    scan, start = JsonScan(), 0
    for cut in cuts:
        if cut < len(text):
            assert scan.find_end(text[:cut], start) is None
            start = cut
    assert scan.find_end(text + rest, start) == len(text)


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [('{"a": "b', True), ('["a\\"', True), ('{"a"', False), ('["a", 1', False), ('"alone', False), ("", False)],
)
def test_strings_of_objects_and_lists_are_told(text: str, is_inside: bool) -> None:
    scan = JsonScan()
    assert scan.find_end(text, 0) is None
    assert scan.is_in_string == is_inside
