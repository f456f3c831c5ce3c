"""Grammars that the text of an answer must match, and how a head turns them into masks of tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from parallax_core.contracts.parser import CallForm, Parser
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


GrammarCheck = Callable[[Grammar], Awaitable[None]]
"""Compiles a grammar within the server's limits of time and memory; raises InvalidRequest if that fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedAnswer:
    """The answers that a request asks for, from which their grammar is written.

    They have a form, call tools, or may do either.

    Either the model calls tools in a format of its own, or a call is JSON that the server reads: the arguments alone
    where ``forced`` names the tool, and else an item of a list, ``[{"name": NAME, "arguments": {...}}]``.
    """

    field: str
    """The field of the body that asks for a grammar, for errors."""
    tools: Mapping[str, str]
    """By name of a tool, the JSON schema of its arguments as JSON text."""
    tool_fields: Mapping[str, str]
    """By name of a tool, the field of the body with its schema."""
    grammar: Grammar | None = None
    """What answers have to match that call no tool; None: nothing, they are text."""
    is_whole: bool = False
    """Whether ``grammar`` leaves no room for calls in the model's own format, whatever the tools."""
    strict_tools: Collection[str] = ()
    """The tools whose arguments have to follow their schemas."""
    forced: str | None = None
    """The tool that the answer has to call; empty: any of them; None: it need not call any."""
    lists_calls: bool = False
    """Whether the model has no format for calls."""
    allows_many_calls: bool = True
    """Whether an answer may have several calls."""
    reasoning_marks: tuple[str, str] | None = None
    """The marks before and after the reasoning; the first is empty if the prompt has opened it. None: no marks."""
    limits_reasoning: bool = False
    """Whether the server ends the reasoning by itself after some tokens."""
    format: str = ""
    """The name of the parser of the model's format, for errors."""
    make_parser: Callable[[], Parser] | None = None
    """Makes that parser, which has begun an answer and may be a `GrammarWriter`; None: no parser."""
    call_form: CallForm | None = None
    """See `ParserSpec.call_form`."""
    may_force_calls: bool = True
    """See `ParserSpec.may_force_calls`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenGrammar:
    """The grammar of an answer."""

    grammar: Grammar
    calls_in_format: bool = False
    """Whether a forced call is in the model's own format, and so is read by its parser."""
    calls_come_first: bool = False
    """See `AnswerInfo.calls_come_first`."""


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
    """Writes and compiles grammars for one model."""

    def prepare(self) -> None:
        """Prepare the vocabulary, which takes up to some seconds. Done by the first `compile` otherwise.

        Raises:
            InvalidRequest: if it is not possible; ``param`` is ``grammar``.
        """

    def can_prepare(self) -> bool:
        """Prepare the vocabulary, and return whether that is possible."""

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        """Return the grammar of answers, which need not compile.

        Raises:
            InvalidRequest: if the format of the model does not allow what is asked for; ``param`` is a field of the
                body.
        """


class GrammarLibrary(Protocol):
    """What compiles grammars; the entry point of a distribution in ``parallax.grammars`` returns one."""

    def open_model(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> ModelGrammars:
        """Return the grammars for the tokenizer in ``file``, whose answers end with one of ``stop_ids``."""

    def read_ebnf(self, text: str) -> str:
        """Return in Lark a grammar in Lark, or in EBNF as llama.cpp writes it.

        Raises:
            ValueError: if it is neither.
        """

    async def check_answer(self, asked: AskedAnswer, check: GrammarCheck) -> tuple[Grammar, Sequence[str]]:
        """Return a grammar that ``check`` has passed or would pass, and the fields of tools whose schemas it lacks.

        The schema of a tool that is not strict may be left out if the grammar cannot be compiled with it.

        Args:
            asked: the answer, whose ``grammar`` is that of `WrittenGrammar`; it has no parser.
            check: its turn may take as long as the grammars of others; what is sure to compile at once needs none.

        Raises:
            InvalidRequest: if there is none; ``param`` is a field of the body.
        """

    def read_calls(self, parser: Parser, forced: str | None, tools: Collection[str]) -> Parser:
        """Return the parser of an answer whose calls are JSON that the server reads; see `AskedAnswer`.

        At the end of the answer, a list that was cut off before its first call is no text.

        Args:
            parser: finds the reasoning; what it takes for content is a call, or may be a list of calls.
            forced: the tool that the answer has to call; empty: any of them; None: it need not call any.
            tools: the names of the tools that a list may call.
        """
