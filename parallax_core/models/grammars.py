"""Finds the library that compiles grammars, which a distribution offers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import (
    AskedAnswer,
    CompiledGrammar,
    Grammar,
    GrammarCheck,
    GrammarLibrary,
    ModelGrammars,
    WrittenGrammar,
)
from parallax_core.contracts.parser import Parser

GROUP = "parallax.grammars"
"""The entry-point group of a function that returns `GrammarLibrary`."""


@cache
def find_library() -> GrammarLibrary:
    """Return the installed library; of several, the first by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    if not points:
        return NoLibrary()
    library: GrammarLibrary = points[0].load()()
    return library


class NoLibrary:
    """Stands for the library where none is installed: every grammar is refused."""

    def open_model(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> ModelGrammars:
        """Return grammars that refuse all."""
        del file, vocab_size, stop_ids
        return self

    def can_prepare(self) -> bool:
        """Return that it is not possible."""
        return False

    def prepare(self) -> None:
        """Refuse grammars."""
        raise _refuse()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Refuse a grammar."""
        del grammar
        raise _refuse()

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        """Refuse a grammar."""
        raise _refuse(asked.field)

    async def check_answer(self, asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
        """Refuse a grammar."""
        del check
        raise _refuse(asked.field)

    def read_ebnf(self, text: str) -> str:
        """Return the text: the grammar is refused when it is written."""
        return text

    def read_calls(self, parser: Parser, forced: str | None, tools: Collection[str]) -> Parser:
        """Return the parser: without a grammar no answer has such calls."""
        del forced, tools
        return parser


def _refuse(field: str = "") -> InvalidRequest:
    message = "a grammar is not available: the server has no library that compiles grammars"
    hint = "install it on the server: pip install parallax-grammars"
    return InvalidRequest(f"'{field}': {message}" if field else message, field or "grammar", hint)
