"""Grammars that the text of an answer must match, and how a head turns them into masks of tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from parallax_core.contracts.value import Value

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]
"""The forms of `Grammar.source`."""


class Grammar(Value, frozen=True, kw_only=True):
    """What the text of an answer must match."""

    kind: GrammarKind
    source: str = ""
    """By kind: nothing (any JSON object), a JSON schema, a regular expression in the syntax of Rust's ``regex``, a JSON
    array of strings, or a grammar in llguidance's dialect of Lark."""
    after: tuple[str, ...] = ()
    """The answer is free until it contains one of these strings; what follows the first of them must match the
    grammar, and ends the answer. A string that is one special token of the model stands for that token. Empty: the
    whole answer must match."""
    must_begin: bool = False
    """Whether the answer may not end before it contains one of them."""
    whitespace: str | None = None
    """A regular expression for the white space between the parts of JSON; empty: no space. None: one optional space
    after each ``:`` and ``,``."""


class Matcher(Protocol):
    """The place of one answer in a grammar."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Append tokens to the answer.

        Raises:
            BackendFailed: if the grammar does not allow them, or following it exceeds a limit.
        """

    def find_mask(self, stop_ids: Collection[int], *, may_end: bool) -> bytes:
        """Return the tokens that may come next, one bit for each; see `parallax_core.wire.messages.Mask`.

        Args:
            stop_ids: the tokens that end the answer: allowed exactly where the grammar allows the end.
            may_end: false: leave them out if another token is allowed.

        Raises:
            BackendFailed: if no token is allowed, or following the grammar exceeds a limit.
        """


class CompiledGrammar(Protocol):
    """A grammar, ready for any number of answers."""

    def start(self) -> Matcher:
        """Return the matcher of an empty answer."""


class GrammarCompiler(Protocol):
    """Compiles grammars for the vocabulary of one model."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the grammar compiled; may take long, and is called on any thread.

        Raises:
            InvalidRequest: if it is invalid, too complex, or matches no text; ``param`` is ``grammar``.
        """
