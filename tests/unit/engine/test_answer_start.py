from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.engine.answer_start import AnswerStart, count_begun

MARKS = ("<t>", "</t>")
OPENED = ("", "</t>")


def split(marks: tuple[str, str] | None, pieces: list[str]) -> tuple[str, str]:
    """Return the text before the answer, and the rest."""
    start, before, held = AnswerStart(marks), "", ""
    for piece in pieces:
        held += piece
        size = start.pass_reasoning(held)
        before, held = before + held[:size], held[size:]
    start.close()
    return before, held


@pytest.mark.parametrize(
    ("marks", "before", "after"),
    [
        (MARKS, "<t>a</t>", "b"),
        (MARKS, " \n<t>a\n</t>\n\n", "b"),
        (MARKS, "<t></t>", ""),
        (MARKS, "", "b<t>a</t>"),
        (MARKS, "", "<ta</t>"),
        (MARKS, "", "\n<"),
        (MARKS, "<t>a</t> ", "</t><t>"),
        (OPENED, "a</t> ", "b"),
        (OPENED, "\n<t>a</t>", "b"),
        (OPENED, "</t>", "b"),
        (None, "", "<t>a</t>b"),
    ],
)
@given(cuts=st.sets(st.integers(0, 12)))
def test_answer_begins_after_the_reasoning_wherever_pieces_end(
    marks: tuple[str, str] | None, before: str, after: str, cuts: set[int]
) -> None:
    text = before + after
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[first:last] for first, last in pairwise(places)]
    assert split(marks, pieces) == (before, after)


def test_reasoning_passes_at_once_but_for_the_start_of_the_mark_that_ends_it() -> None:
    start = AnswerStart(OPENED)
    assert start.pass_reasoning("long<") == len("long")
    assert start.pass_reasoning("<b></") == len("<b>")


@pytest.mark.parametrize(("text", "size"), [("a</", 2), ("a</t", 3), ("a</t>", 0), ("", 0), ("a", 0), ("<<", 1)])
def test_start_of_a_mark_at_the_end_of_a_text_is_counted(text: str, size: int) -> None:
    assert count_begun(text, "</t>") == size
