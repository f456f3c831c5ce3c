"""The kit for libraries of grammars passes that of llguidance, and catches a fault of each sort."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Parser
from parallax_core.api.grammars import AskedAnswer, Grammar, GrammarCheck, WrittenGrammar
from parallax_core.testing.grammar_library import GrammarLibraryConformance, change
from parallax_grammars.forced_calls import ForcedCallParser
from parallax_grammars.library import LlguidanceLibrary
from parallax_grammars.model_grammars import LlguidanceGrammars
from tests.conformance.harness import find_failures

ANY = Grammar(kind="regex", source="(.|\n)*")


class TestLlguidance(GrammarLibraryConformance):
    """The library that comes with Parallax passes."""

    def make_library(self) -> Any:
        return LlguidanceLibrary()


class Forgiving(LlguidanceGrammars):
    """Takes any text instead of a grammar that it cannot compile."""

    def compile(self, grammar: Grammar) -> Any:
        try:
            return super().compile(grammar)
        except Exception:  # noqa: BLE001 -- the fault
            return super().compile(ANY)


class Free(LlguidanceGrammars):
    """Holds answers to nothing."""

    def compile(self, grammar: Grammar) -> Any:
        super().compile(grammar)
        return super().compile(ANY)


class Unforced(LlguidanceGrammars):
    """Lets an answer that has to call a tool go without."""

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        return super().write_answer(change(asked, forced=None))


class Formless(LlguidanceGrammars):
    """Forgets the form of an answer that calls nothing."""

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        return super().write_answer(change(asked, grammar=None))


class Silent(LlguidanceGrammars):
    """Does not say that a call is in the format of the model."""

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        return WrittenGrammar(grammar=super().write_answer(asked).grammar)


class Unchecked(LlguidanceLibrary):
    """Checks nothing."""

    async def check_answer(self, asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
        del check
        assert asked.grammar is not None
        return asked.grammar, ()


class Lenient(LlguidanceLibrary):
    """Leaves out the schemas of strict tools, too."""

    async def check_answer(self, asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
        return await super().check_answer(change(asked, strict_tools=()), check)


class Deaf(LlguidanceLibrary):
    """Takes calls for text."""

    def read_calls(self, parser: Parser, forced: str | None, tools: Collection[str]) -> Parser:
        del forced, tools
        return parser


class Talkative(LlguidanceLibrary):
    """Shows what is left of a list."""

    def read_calls(self, parser: Parser, forced: str | None, tools: Collection[str]) -> Parser:
        return ForcedCallParser(parser, "") if forced is None else super().read_calls(parser, forced, tools)


def with_grammars(grammars: type[LlguidanceGrammars]) -> type[LlguidanceLibrary]:
    class Library(LlguidanceLibrary):
        def open_model(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> LlguidanceGrammars:
            return grammars(file, vocab_size, stop_ids)

    return Library


@pytest.mark.parametrize(
    ("library", "test"),
    [
        (with_grammars(Forgiving), "test_bad_grammar_is_refused"),
        (with_grammars(Free), "test_masks_allow_what_matches_a_grammar_alone"),
        (with_grammars(Unforced), "test_forced_calls_are_the_arguments_or_a_list"),
        (with_grammars(Formless), "test_model_without_a_format_lists_its_calls_or_answers"),
        (with_grammars(Silent), "test_parser_writes_the_grammar_of_its_format"),
        (Deaf, "test_calls_in_json_are_read"),
        (Talkative, "test_list_that_is_cut_off_is_no_text"),
        (Unchecked, "test_bad_schema_is_left_out_unless_it_must_hold"),
        (Lenient, "test_bad_schema_is_left_out_unless_it_must_hold"),
    ],
)
def test_fault_is_caught(library: type[LlguidanceLibrary], test: str) -> None:
    class Kit(GrammarLibraryConformance):
        def make_library(self) -> Any:
            return library()

    assert test in find_failures(Kit)
