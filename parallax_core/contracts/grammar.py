"""Grammars that the text of an answer must match, and how a head turns them into masks of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from parallax_core.base.schema_refs import JsonSchema
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


class ModelGrammars(GrammarCompiler, Protocol):
    """Compiles grammars for one model, and knows its special tokens."""

    def prepare(self) -> None:
        """Prepare the vocabulary, which takes up to some seconds. Done by the first `compile` otherwise.

        Raises:
            InvalidRequest: if it is not possible; ``param`` is ``grammar``.
        """

    def can_prepare(self) -> bool:
        """Prepare the vocabulary, and return whether that is possible."""

    def find_special(self, text: str) -> str:
        """Return the name in Lark of the special token that ``text`` stands for; empty if it stands for none."""

    def simplify_schema(self, schema: JsonSchema) -> JsonSchema:
        """Return a schema with local references, without what asks for nothing."""


class GrammarLibrary(Protocol):
    """What compiles grammars; the entry point of a distribution in ``parallax.grammars`` returns one."""

    def open_model(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> ModelGrammars:
        """Return the grammars for the tokenizer in ``file``, whose answers end with one of ``stop_ids``."""

    def read_ebnf(self, text: str) -> str:
        """Return in Lark a grammar in Lark, or in EBNF as llama.cpp writes it.

        Raises:
            ValueError: if it is neither.
        """
