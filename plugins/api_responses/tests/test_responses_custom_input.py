from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_api_responses.custom_input import CustomInput

TEXT = st.text().filter(lambda text: not any(0xD800 <= ord(letter) < 0xE000 for letter in text))


def read(arguments: str, cuts: list[int]) -> str:
    """Return the input that is read from arguments in pieces."""
    reader, places = CustomInput(), sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    pieces = [reader.feed(arguments[start:end]) for start, end in pairwise(places)]
    return "".join(pieces) + reader.finish()


@given(TEXT, st.booleans(), st.lists(st.integers(0, 1000)))
def test_input_is_read_in_any_pieces(text: str, is_ascii: bool, cuts: list[int]) -> None:
    assert read(json.dumps({"input": text}, ensure_ascii=is_ascii), cuts) == text


@given(st.text('{}[]":, \\u0d8aeinputx', max_size=40), st.lists(st.integers(0, 1000)))
def test_any_arguments_give_one_input_in_any_pieces(arguments: str, cuts: list[int]) -> None:
    whole = read(arguments, [])
    assert read(arguments, cuts) == whole
    whole.encode()


@pytest.mark.parametrize("arguments", ['{"patch": "x"}', "[]", "plain", '{"input": {"a": 1}}', ""])
def test_other_arguments_are_the_input(arguments: str) -> None:
    assert read(arguments, [1, 3, 5]) == arguments


def test_cut_arguments_give_what_there_is() -> None:
    assert read('{"input": "ab\\u00', []) == "ab"
