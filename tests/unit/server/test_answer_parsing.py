from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Delta
from parallax_core.contracts.parser import Content, ParserSpec, Piece, Reasoning, ToolCall
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.answer_parsing import (
    ID_LETTERS,
    AnswerParsing,
    PlainParser,
    continues,
    join,
    make_call_id,
    read_text,
)
from parallax_core.server.body_messages import ResponseForm

CALL = (ToolCall(0, "look"), ToolCall(0, "", '{"at": '), ToolCall(0, "", '"x"}'))
NEXT = (ToolCall(1, "take"), ToolCall(1, "", "{}"))
KINDS: dict[str, Sequence[Piece]] = {
    "r": [Reasoning("r")],
    "c": [Content("c")],
    "m": [Reasoning("r"), Content("c")],
    "1": CALL[:1],
    "2": CALL[1:2],
    "3": CALL[2:],
    "4": NEXT,
    "a": [*CALL, *NEXT],
    ".": [],
}


class LetterParser:
    """Finds the pieces that each letter stands for, and holds back those of ``h`` until the end."""

    def __init__(self) -> None:
        self._held: list[Piece] = []

    def feed(self, text: str) -> Sequence[Piece]:
        if text == "h":
            self._held.append(Reasoning("held"))
        return [piece for letter in text for piece in KINDS.get(letter, [])]

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, []
        return held


PARSER = OutputParser(
    ParserSpec(name="letters", summary="", factory=Ref[Any](f"{__name__}:LetterParser")), LetterParser
)


def parse(*texts: str, ended: bool = True, **given: Any) -> tuple[AnswerParsing, list[Piece]]:
    """Parse an answer that comes in these texts, of one token each."""
    parsing = AnswerParsing(PARSER, ResponseForm(model="m", num_answers=1, **given))
    pieces: list[Piece] = []
    for number, text in enumerate(texts, 1):
        is_last = ended and number == len(texts)
        pieces += parsing.read(Delta(text=text, tokens=(number,), ended="stop" if is_last else None))
    return parsing, join(pieces)


@pytest.mark.parametrize(
    ("texts", "num_reasoning"),
    [
        (("c", "c"), 0),
        (("r", "r", "c"), 2),
        ((".", "r", ".", "c"), 2),
        ((".", ".", "r", "c"), 3),
        (("m", "c"), 1),
        (("r", "m"), 2),
        (("r", ".", "."), 3),
        (("c", ".", "r"), 2),
        (("c", "h"), 1),
    ],
)
def test_tokens_count_as_reasoning_with_the_text_that_they_complete(texts: tuple[str, ...], num_reasoning: int) -> None:
    assert parse(*texts)[0].num_reasoning == num_reasoning


def test_tokens_that_are_not_decided_yet_do_not_count() -> None:
    assert parse("r", ".", ended=False)[0].num_reasoning == 1


@pytest.mark.parametrize(
    ("texts", "has_calls", "ends"),
    [
        (("c",), False, False),
        (("1",), True, False),
        (("1", "2"), True, False),
        (("1", "2", "3"), True, True),
        (("1", "2", "3", "4"), True, True),
        (("a",), True, True),
        (("1", "2", "4"), True, True),
        (("4", "1", "2"), True, False),
    ],
)
def test_answer_ends_with_calls_if_the_last_one_is_whole(texts: tuple[str, ...], has_calls: bool, ends: bool) -> None:
    parsing, _ = parse(*texts)
    assert (parsing.has_calls, parsing.ends_with_calls) == (has_calls, ends)


def test_second_call_is_cut_where_only_one_is_allowed() -> None:
    whole = [CALL[0], ToolCall(0, "", '{"at": "x"}')]
    assert parse("c", "1", "23", "4", "c")[1] == [Content("c"), *whole, *NEXT, Content("c")]
    assert parse("c", "1", "23", "4", "c", allows_many_calls=False)[1] == [Content("c"), *whole]
    assert parse("a", "c", allows_many_calls=False)[1] == whole


def test_pieces_of_one_kind_are_joined() -> None:
    assert join([]) == []
    assert join([Content("a"), Content("b"), Reasoning("c"), Reasoning("d"), Content("e")]) == [
        Content("ab"),
        Reasoning("cd"),
        Content("e"),
    ]
    calls = [ToolCall(0, "f"), ToolCall(0, "", "{"), ToolCall(0, "", "}"), ToolCall(1, "", "["), ToolCall(1, "g")]
    assert join(calls) == [ToolCall(0, "f"), ToolCall(0, "", "{}"), ToolCall(1, "", "["), ToolCall(1, "g")]


def test_plain_text_is_content() -> None:
    parser = PlainParser()
    assert (parser.feed("a"), parser.feed(""), parser.finish()) == ([Content("a")], [], [])


def test_piece_goes_on_with_its_part_unless_it_names_a_call() -> None:
    assert continues(Content("a"), Content)
    assert not continues(Content("a"), Reasoning)
    assert continues(CALL[1], ToolCall)
    assert not continues(CALL[0], ToolCall)
    assert [read_text(piece) for piece in (Content("a"), Reasoning("b"), CALL[1])] == ["a", "b", '{"at": ']


def test_ids_of_calls_are_those_that_every_template_takes() -> None:
    made = {make_call_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(each) == 9 and set(each) <= set(ID_LETTERS) for each in made)
