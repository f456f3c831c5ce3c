from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.testing.parser import ParserConformance, join_pieces
from parallax_grammars.forced_calls import ForcedCallParser
from tests.conformance.parsers import ThinkParser

ARGUMENTS = '{"a": "}] \\" {", "b": [1, {"c": {}}]}'


class TestNamed(ParserConformance):
    marks = ("<think>", "</think>", "</think>\n")
    samples = (
        (ARGUMENTS, [ToolCall(0, "look_up", ARGUMENTS)]),
        ("<think>hm</think>\n{}", [Reasoning("hm"), ToolCall(0, "look_up", "{}")]),
    )

    def make_parser(self) -> Parser:
        return ForcedCallParser(ThinkParser(), "look_up")

    def test_text_without_marks_is_content(self) -> None:
        """The grammar allows no such text."""

    def test_what_is_certain_is_not_held_back(self) -> None:
        """The grammar allows no such text."""


class TestAny(TestNamed):
    samples = (
        (f'[{{"name": "look_up", "arguments": {ARGUMENTS}}}]', [ToolCall(0, "look_up", ARGUMENTS)]),
        (
            '<think>hm</think>[ {"name":"go","arguments":{}}, {"name": "look_up", "arguments": {"w": "é"}}\n]',
            [Reasoning("hm"), ToolCall(0, "go", "{}"), ToolCall(1, "look_up", '{"w": "é"}')],
        ),
    )

    def make_parser(self) -> Parser:
        return ForcedCallParser(ThinkParser(), "")


def parse(named: str, parts: Sequence[str]) -> list[Piece]:
    parser = ForcedCallParser(ThinkParser(), named)
    return join_pieces([*[piece for part in parts for piece in parser.feed(part)], *parser.finish()])


@given(st.lists(st.text('[{}]":,\\ nameargumts', max_size=9), max_size=9), st.sampled_from(["", "go"]))
def test_cuts_make_no_difference_whatever_the_text(parts: list[str], named: str) -> None:
    text = "".join(parts)
    assert parse(named, parts) == parse(named, [text]) == parse(named, list(text))


def test_text_that_is_no_call_is_not_lost() -> None:
    assert parse("", ["nothing"]) == [Content("nothing")]
