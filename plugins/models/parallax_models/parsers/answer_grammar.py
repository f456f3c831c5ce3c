"""Writes grammars of answers in llguidance's dialect of Lark.

llguidance reads the longest lexeme that fits, so free text and the mark that ends it are one: else the text would take
the mark, too. A mark that is a special token is no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from parallax_core.api import AllowedAnswers
from parallax_grammar_tools.lark import write_pattern

ANY = r"/(.|\n)*/"
"""Any text."""
SPACE = r"[ \n]*"


class AnswerGrammar:
    """The rules of a grammar."""

    def __init__(self, allowed: AllowedAnswers) -> None:
        self.allowed = allowed
        self._names: dict[str, str] = {}
        """Of the rules, by their options and what they say."""

    def mark(self, *texts: str) -> str:
        """Return marks with white space before each."""
        return " ".join(f"space {self.text(text)}" for text in texts)

    def text(self, text: str) -> str:
        """Return a text as it is, or the special token that it stands for."""
        return self.allowed.find_special(text) or quote(text)

    def terminal(self, expression: str) -> str:
        """Return the name of a part of the text."""
        return self._define("T", expression)

    def rule(self, expression: str) -> str:
        """Return the name of a rule."""
        return self._define("r", expression)

    def json(self, schema: str) -> str:
        """Return the name of the rule of a JSON value."""
        return self._define("j", f"%json {schema}")

    def text_before(self, text: str, mark: str) -> str:
        """Return a text, a terminal expression without the mark in it, up to that mark."""
        name, special = self.terminal(text), self.allowed.find_special(mark)
        return f"{name} {special}" if special else self._define("s", name, f"[suffix={quote(mark)}]")

    def repeat(
        self, call: str, *, opening: Iterable[str] = (), between: Iterable[str] = (), end: Iterable[str] = ()
    ) -> str:
        """Return calls, as many as are allowed, with marks before the first, between two and after the last."""
        more = f"({self.mark(*between)} space {call}){{0,{self.allowed.most_calls - 1}}}"
        return f"{self.mark(*opening)} space {call} {more if self.allowed.most_calls > 1 else ''} {self.mark(*end)}"

    def write(self, start: str) -> str:
        """Return the whole grammar."""
        lines = [f"start: {start}", "space: /[ \\n]{1,4}/?", "gap: / /?", self.allowed.answer]
        return "\n".join([*lines, *(f"{name}{rule}" for rule, name in self._names.items())])

    def _define(self, kind: str, rule: str, options: str = "") -> str:
        return self._names.setdefault(f"{options}: {rule}", f"{kind}{len(self._names)}")


def quote(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def without(*texts: str) -> str:
    """Return any text without these."""
    return f"{ANY} & ~{write_pattern(f'(?s:.*)(?:{_join(texts)})(?s:.*)')}"


def not_after_space(text: str) -> str:
    """Return any text that does not begin with this one, after white space."""
    return f"{ANY} & ~{write_pattern(f'{SPACE}{re.escape(text)}(?s:.*)')}"


def _join(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, texts))
