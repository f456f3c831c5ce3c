"""Offers llguidance as the library of grammars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from parallax_core.api.grammars import AskedAnswer, Grammar, GrammarCheck
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
