from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallax_core.api import Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.testing.parser import ParserConformance
from tests.conformance.harness import find_failures, list_tests
from tests.conformance.parsers import BEGIN, CallParser, ThinkParser

CALL = '<tool_call>\n{"name": "look_up", "arguments": %s}\n</tool_call>'
FIRST = '{"word": "a } \\" { brace", "depth": [1, {"of": 2}]}'


class ThinkKit(ParserConformance):
    marks = ("<think>", "</think>")
    samples = (
        ("plain", [Content("plain")]),
        ("<think>why\n</think>\nbecause", [Reasoning("why\n"), Content("\nbecause")]),
        ("1 < 2 <think>3 </thin 4</think><thin", [Content("1 < 2 "), Reasoning("3 </thin 4"), Content("<thin")]),
        ("<think></think>", []),
        ("<<think>a<think></think></think>", [Content("<"), Reasoning("a<think>"), Content("</think>")]),
    )

    def make_parser(self) -> Parser:
        return ThinkParser()


class CallKit(ParserConformance):
    marks = (BEGIN,)
    samples = (
        ("no call", [Content("no call")]),
        (f"let me see {CALL % FIRST}", [Content("let me see "), ToolCall(0, "look_up", FIRST)]),
        (
            f"{CALL % '{}'}, {CALL % FIRST}",
            [ToolCall(0, "look_up", "{}"), Content(", "), ToolCall(1, "look_up", FIRST)],
        ),
        ("<tool_call>what?</tool_call> <tool", [Content("<tool_call>what?</tool_call> <tool")]),
    )

    def make_parser(self) -> Parser:
        return CallParser()


class TestThinkParser(ThinkKit):
    """A parser of reasoning passes."""


class TestCallParser(CallKit):
    """A parser of calls passes."""


WHOLE, CUT = "test_whole_text_gives_the_expected_pieces", "test_pieces_are_the_same_however_the_text_is_cut"
OFF, PROSE = "test_answer_that_breaks_off_loses_nothing", "test_text_without_marks_is_content"
HALF, HELD = "test_half_a_mark_is_content", "test_what_is_certain_is_not_held_back"
TWICE, ORDER = "test_second_finish_returns_nothing", "test_parts_of_a_call_come_in_order"
JSON, SHARED = "test_arguments_of_a_call_are_json", "test_parsers_share_nothing"


class Forgetful(ThinkParser):
    """Does not see a mark that comes in two parts."""

    def feed(self, text: str) -> Sequence[Piece]:
        return [*super().feed(text), *super().finish()]


class Dropping(ThinkParser):
    """Loses what it held back."""

    def finish(self) -> Sequence[Piece]:
        return []


class Repeating(ThinkParser):
    """Says at every finish what it held back."""

    def finish(self) -> Sequence[Piece]:
        return self._piece(self._held)


class Trimming(ThinkParser):
    """Takes away spaces, which are not its own."""

    def _piece(self, text: str) -> list[Piece]:
        return super()._piece(text.strip(" "))


class Hoarding(ThinkParser):
    """Says everything at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def feed(self, text: str) -> Sequence[Piece]:
        self._text += text
        return []

    def finish(self) -> Sequence[Piece]:
        text, self._text = self._text, ""
        return [*super().feed(text), *super().finish()]


class Eating(ThinkParser):
    """Takes half a mark for a mark at the end."""

    def finish(self) -> Sequence[Piece]:
        self._held = ""
        return []


class Sharing(ThinkParser):
    """Remembers for all answers at once."""

    places: dict[str, str] = {}  # noqa: RUF012 - the fault

    @property
    def _held(self) -> str:
        return self.places.get("held", "")

    @_held.setter
    def _held(self, text: str) -> None:
        self.places["held"] = text


@pytest.mark.parametrize(
    ("parser", "expected"),
    [
        (Forgetful, {CUT, OFF, SHARED}),
        (Dropping, {WHOLE, CUT, OFF, HALF}),
        (Repeating, {TWICE}),
        (Trimming, {WHOLE, CUT, OFF, PROSE, HALF, HELD, SHARED}),
        (Hoarding, {HELD}),
        (Eating, {WHOLE, CUT, OFF, HALF}),
        (Sharing, {SHARED}),
    ],
)
def test_kit_catches_a_fault_of_reasoning(parser: type[ThinkParser], expected: set[str]) -> None:
    found = find_failures(type("Kit", (ThinkKit,), {"make_parser": lambda _: parser()}))
    assert set(found) == expected


class Backward(CallParser):
    """Gives the arguments before the name."""

    def begin_call(self, name: str) -> list[Piece]:
        return [ToolCall(self._index, arguments=""), ToolCall(self._index, name)]


class Bundling(CallParser):
    """Gives a name with arguments."""

    def begin_call(self, name: str) -> list[Piece]:
        return [ToolCall(self._index, name, " ")]


class Miscounting(CallParser):
    """Counts calls from 1."""

    def begin_call(self, name: str) -> list[Piece]:
        self._index += self._index == 0
        return super().begin_call(name)


class Careless(CallParser):
    """Takes a brace in a string for the end."""

    def _note(self, letter: str) -> None:
        self._depth += (letter in "{[") - (letter in "}]")


class Silent(CallParser):
    """Says nothing of a call that breaks off before its name."""

    def finish(self) -> Sequence[Piece]:
        held = super().finish()
        return [] if BEGIN in "".join(piece.text for piece in held if isinstance(piece, Content)) else held


@pytest.mark.parametrize(
    ("parser", "expected"),
    [
        (Backward, {ORDER, WHOLE, CUT, JSON}),
        (Bundling, {ORDER, WHOLE, CUT}),
        (Miscounting, {ORDER, WHOLE, CUT}),
        (Careless, {JSON, WHOLE, CUT}),
        (Silent, {OFF}),
    ],
)
def test_kit_catches_a_fault_of_calls(parser: type[CallParser], expected: set[str]) -> None:
    found = find_failures(type("Kit", (CallKit,), {"make_parser": lambda _: parser()}))
    assert set(found) == expected


def test_every_test_of_the_kit_is_shown_to_catch_something() -> None:
    assert set(list_tests(ParserConformance)) == {WHOLE, CUT, OFF, PROSE, HALF, HELD, TWICE, ORDER, JSON, SHARED}
