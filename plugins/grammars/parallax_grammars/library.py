"""Offers llguidance as the library of grammars."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from parallax_core.api import Parser
from parallax_core.api.grammars import AskedAnswer, Grammar, GrammarCheck
from parallax_grammars.forced_calls import ForcedCallParser
from parallax_grammars.listed_calls import ListedCallParser
from parallax_grammars.model_grammars import LlguidanceGrammars
from parallax_grammars.tool_schemas import check_answer


class LlguidanceLibrary:
    """Compiles grammars with llguidance; see `GrammarLibrary`."""

    def open_model(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> LlguidanceGrammars:
        """Return the grammars for the tokenizer in a file; see `GrammarLibrary.open_model`."""
        return LlguidanceGrammars(file, vocab_size, stop_ids)

    def read_ebnf(self, text: str) -> str:
        """Return a grammar in Lark; see `GrammarLibrary.read_ebnf`."""
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            return str(any_to_lark(text))
        except Exception as error:
            raise ValueError(str(error)) from error

    async def check_answer(self, asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
        """Return a grammar that can be compiled; see `GrammarLibrary.check_answer`."""
        return await check_answer(asked, check)

    def read_calls(self, parser: Parser, forced: str | None, tools: Collection[str]) -> Parser:
        """Return a parser of calls in JSON; see `GrammarLibrary.read_calls`."""
        return ListedCallParser(parser, tools) if forced is None else ForcedCallParser(parser, forced)
