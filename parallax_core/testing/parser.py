"""The kit for output parsers: the pieces do not depend on how the text is split, and no text is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from parallax_core.contracts.parser import Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.testing.promise import broken

CUTS = "However the text is split, the result is the same once adjacent pieces of one kind are joined"
NOTHING_LOST = "No text is lost except the markers themselves"
HALF_MARK = "text that looks like a marker and turns out not to be one is content"
CERTAIN = "Add text and return the pieces that are certain by now"
FINISH = "Return the pieces held back, at the end of the answer. A second call returns nothing"
CALL = "the first piece has the whole name and no arguments, later ones have only arguments"
INDEX = "The number of the call in the answer, counted from 0"
JSON = "A piece of JSON text; the pieces of one index concatenated are the arguments"
ONE_ANSWER = "Makes a parser for one answer"

SEEDS = range(30)
PROSE = "Two words and a comma, then a line\n\tand höher 日本 \N{GRINNING FACE} letters. " * 5


class ParserConformance:
    """Holds a parser to its contract.

    Subclass it in a test module under a name that begins with ``Test``, and give `make_parser`, `samples` and `marks`.
    """

    samples: Sequence[tuple[str, Sequence[Piece]]]
    """Whole answers of a model, and their pieces with neighbours of one kind put together; a `ToolCall` with its name
    and all its arguments counts as one piece here."""
    marks: Sequence[str] = ()
    """The markers that the parser recognizes at the beginning of an answer, such as ``<think>``."""

    def make_parser(self) -> Parser:
        """Return a parser for one answer."""
        raise NotImplementedError

    def test_whole_text_gives_the_expected_pieces(self) -> None:
        """A sample that is fed at once gives its pieces."""
        for text, pieces in self.samples:
            self._check(text, [text], join_pieces(pieces))

    def test_pieces_are_the_same_however_the_text_is_cut(self) -> None:
        """Cut in two at every place, cut into characters, and cut at random, with empty parts between."""
        for text, pieces in self.samples:
            expected = join_pieces(pieces)
            for parts in cut_text(text):
                self._check(text, parts, expected)

    def test_answer_that_breaks_off_loses_nothing(self) -> None:
        """An answer may end anywhere; what was held back comes at the end, and cuts make no difference."""
        for text, _ in self.samples:
            for stop in range(len(text)):
                begun = text[:stop]
                whole = self._parse([begun])
                self._check(begun, list(begun), whole)
                lost = find_lost(begun, whole, self.marks)
                assert not lost, broken(
                    f"after the truncated text {begun!r}, {lost!r} is in no piece: {whole}", NOTHING_LOST
                )

    def test_text_without_marks_is_content(self) -> None:
        """Prose comes out as it went in."""
        self._check(PROSE, list(PROSE), [Content(PROSE)])

    def test_half_a_mark_is_content(self) -> None:
        """The beginning of a mark is text, if the answer ends there or goes on in another way."""
        for mark in self.marks:
            for stop in range(1, len(mark)):
                half = mark[:stop]
                for text in (half, f"so {half}", f"{half}\0 and more"):
                    if not any(other in text for other in self.marks):
                        found = self._parse(list(text))
                        assert found == [Content(text)], broken(f"{text!r} gives {found}", HALF_MARK)

    def test_what_is_certain_is_not_held_back(self) -> None:
        """Of prose, no more is held back than the beginning of a mark could be long."""
        parser, seen = self.make_parser(), 0
        held = max((len(mark) for mark in self.marks), default=1)
        for number, letter in enumerate(PROSE, 1):
            seen += sum(len(piece.text) for piece in parser.feed(letter) if isinstance(piece, Content))
            fault = f"only {seen} of {number} characters without a mark were returned"
            assert seen >= number - held, broken(fault, CERTAIN)

    def test_second_finish_returns_nothing(self) -> None:
        """Whatever was fed, also nothing and half a sample."""
        for text, _ in (*self.samples, ("", ())):
            for fed in (text, text[: len(text) // 2], text[: len(text) // 3]):
                parser = self.make_parser()
                parser.feed(fed)
                parser.finish()
                again = list(parser.finish())
                assert not again, broken(f"after {fed!r}, the second finish returned {again}", FINISH)

    def test_parts_of_a_call_come_in_order(self) -> None:
        """The name whole and first with no arguments, then arguments without a name; one call after the other."""
        for text, _ in self.samples:
            for parts in cut_text(text):
                calls = [piece for piece in self._feed(parts) if isinstance(piece, ToolCall)]
                check_calls(calls)

    def test_arguments_of_a_call_are_json(self) -> None:
        """The arguments of each call of a whole answer are a JSON text."""
        for text, _ in self.samples:
            for piece in self._parse(list(text)):
                if isinstance(piece, ToolCall):
                    try:
                        json.loads(piece.arguments)
                    except ValueError as error:
                        raise AssertionError(broken(f"the arguments of {piece} are not JSON", JSON)) from error

    def test_parsers_share_nothing(self) -> None:
        """Two answers that are parsed at the same time give what each gives alone."""
        for text, _ in self.samples:
            for other, _ in self.samples:
                first, second = self.make_parser(), self.make_parser()
                pieces: list[Piece] = []
                for index, letter in enumerate(text):
                    pieces += first.feed(letter)
                    second.feed(other[index : index + 1])
                second.finish()
                pieces += first.finish()
                alone = self._parse([text])
                found = join_pieces(pieces)
                assert found == alone, broken(
                    f"parsed beside {other!r}, {text!r} gives {found}, but alone {alone}", ONE_ANSWER
                )

    def _check(self, text: str, parts: Sequence[str], expected: list[Piece]) -> None:
        found = self._parse(parts)
        is_fine = len(parts) > 1 and all(len(part) == 1 for part in parts)
        cut = "a character at a time" if is_fine else f"as {list(parts)}"
        assert found == expected, broken(f"{text!r}, fed {cut}, gives {found}, but should give {expected}", CUTS)

    def _parse(self, parts: Sequence[str]) -> list[Piece]:
        return join_pieces(self._feed(parts))

    def _feed(self, parts: Sequence[str]) -> list[Piece]:
        parser = self.make_parser()
        pieces = [piece for part in parts for piece in parser.feed(part)]
        return [*pieces, *parser.finish()]


def cut_text(text: str) -> Iterator[list[str]]:
    """Yield many ways to cut a text."""
    yield list(text)
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]
    for seed in SEEDS:
        source = random.Random(seed)  # noqa: S311 - a test needs a seed, not secrecy
        cuts = sorted(source.choices(range(len(text) + 1), k=1 + seed // 3))
        yield [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Return ``pieces`` with neighbours of one kind put together, and the parts of a call made one."""
    joined: list[Piece] = []
    for piece in pieces:
        match (joined[-1] if joined else None, piece):
            case (_, Content("") | Reasoning("")):
                pass
            case (Content(before), Content(text)):
                joined[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                joined[-1] = Reasoning(before + text)
            case (ToolCall(index, name, before, call_id), ToolCall(same, "", text)) if same == index:
                joined[-1] = ToolCall(index, name, before + text, call_id)
            case _:
                joined.append(piece)
    return joined


def find_lost(text: str, pieces: Sequence[Piece], marks: Sequence[str]) -> str:
    """Return the first of ``text`` that is in no piece and in no mark, as far as it can be told.

    Around a call stands more than marks, in the words of each model; of that nothing is told.
    """
    if any(isinstance(piece, ToolCall) for piece in pieces):
        return ""
    words = "".join(piece.text for piece in pieces if isinstance(piece, Content | Reasoning))
    reached, open_ends = {(0, 0)}, [(0, 0)]
    while open_ends:
        at, said = open_ends.pop()
        ends = [(at + len(mark), said) for mark in marks if text.startswith(mark, at)]
        if text[at : at + 1] == words[said : said + 1] != "":
            ends.append((at + 1, said + 1))
        open_ends += [end for end in ends if end not in reached]
        reached.update(ends)
    furthest = max(at for at, _ in reached)
    return text[furthest:] if furthest < len(text) else words[max(said for _, said in reached) :]


def check_calls(calls: Sequence[ToolCall]) -> None:
    """Check that each call begins with its name alone, goes on without, and ends before the next begins."""
    current = -1
    for call in calls:
        if call.name:
            assert call.index == current + 1, broken(f"call {call.index} follows call {current}", INDEX)
            assert not call.arguments, broken(f"{call} begins a call, and has arguments already", CALL)
            current = call.index
        else:
            is_known = call.index == current
            assert is_known, broken(f"{call} is a part of a call that has no name yet or has ended", CALL)
