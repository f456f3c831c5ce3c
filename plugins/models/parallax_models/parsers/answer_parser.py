"""The base of all parsers: reasoning at the beginning, then content, and calls opened by marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from parallax_core.api import AllowedAnswers, AnswerInfo, Content, Piece, Reasoning, ToolCall
from parallax_grammar_tools.lark import write_pattern
from parallax_grammar_tools.schema_refs import JsonSchema, localize_references
from parallax_models.parsers.answer_grammar import (
    ANY,
    SPACE,
    AnswerGrammar,
    not_after_space,
    quote,
    without,
)
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading, TextReader

THINK = ("<think>", "</think>")
"""The marks around reasoning in most formats."""


class AnswerParser:
    """Reads one answer; see `parallax_core.api.Parser`. A subclass reads the calls of one format.

    White space around the marks of reasoning and calls belongs to the marks.
    """

    thinking: tuple[str, str] = THINK
    """The marks that open and close the reasoning."""
    openers: tuple[str, ...] = ()
    """The marks that open calls."""
    thought_label: ClassVar[str] = ""
    """The text after the mark that opens the reasoning, if there is one."""
    answer_marks: ClassVar[tuple[str, ...]] = ()
    """The marks around the answer after the reasoning, of formats that have them."""
    written_openers: tuple[str, ...] = ()
    """Those of them that a grammar has; empty: all."""

    def __init__(self) -> None:
        self.text = TextReader()
        self.tools: Mapping[str, str] | None = None
        """The schemas of the tools, as in `AnswerInfo`; None: not known, any name may be called."""
        self._pieces: list[Piece] = []
        self._thinks = self._calls_come_first = False
        self._num_newlines = 0
        self._num_calls = 0
        self._has_arguments = True
        self._reading = self.read_answer()

    def begin(self, answer: AnswerInfo) -> None:
        """See `parallax_core.api.Informed`."""
        self.tools, self._calls_come_first = answer.tools, answer.calls_come_first
        self._thinks = answer.prompt_end.rstrip().removesuffix(self.thought_label).endswith(self.thinking[0])

    def feed(self, text: str) -> Sequence[Piece]:
        """See `parallax_core.api.Parser`."""
        self.text.add(text)
        return self._go_on()

    def finish(self) -> Sequence[Piece]:
        """See `parallax_core.api.Parser`."""
        self.text.end()
        return self._go_on()

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """See `parallax_core.api.GrammarWriter`."""
        grammar = AnswerGrammar(allowed)
        call = grammar.rule(" | ".join(self.write_call(grammar, name) for name in allowed.tools))
        if allowed.answer or allowed.must_call:
            content = self.write_content(grammar, call, "")
            return grammar.write(content if allowed.must_call else f"space answer | {content}")
        opener, closer = self.thinking
        content = self.write_content(grammar, call, ANY)
        thoughts = without(closer)
        thinking = f"({grammar.text_before(thoughts, closer)} ({content}) | {grammar.terminal(thoughts)})"
        if self._thinks:
            return grammar.write(thinking)
        special = allowed.find_special(opener)
        begin = f"space {special}" if special else grammar.terminal(f"{write_pattern(SPACE)} {quote(opener)}")
        return grammar.write(f"{begin} {thinking} | {self.write_content(grammar, call, not_after_space(opener))}")

    def write_content(self, grammar: AnswerGrammar, call: str, text: str) -> str:
        """Return the grammar of content with calls.

        Args:
            grammar: takes the rules.
            call: the name of the rule of a call.
            text: may come before calls, or in their place; empty: there has to be a call, and nothing else.
        """
        free, options = f"{text} & {without(*self.openers)}", []
        for opener in self.written_openers or self.openers:
            before = grammar.text_before(free, opener) if text else grammar.text(opener)
            options.append(f"{before} {self.write_calls(grammar, call, opener)}")
        return " | ".join([*options, *([grammar.terminal(free)] if text else [])])

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """Return the grammar of the calls after ``opener``, and of what closes them."""
        raise NotImplementedError

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """Return the grammar of one call of the tool ``name``."""
        raise NotImplementedError

    def read_answer(self) -> Reading[None]:
        """Read the whole answer."""
        yield from self.read_reasoning()
        yield from self.read_content()

    def read_reasoning(self) -> Reading[None]:
        """Read the reasoning, if the answer begins with it."""
        opener, closer = self.thinking
        if not self._thinks and not (yield from self.text.expect_after_space(opener)):
            return
        yield from self.text.expect(self.thought_label)
        yield from self.text.skip_space()
        if (yield from self.text.pass_until(Marks(closer), self._reason)):
            self._num_newlines = 0
            yield from self.text.skip_space()
        self._reason("", is_last=True)

    def read_content(self) -> Reading[None]:
        """Read content and calls up to the end."""
        ends: tuple[str, ...] = ()
        if self.answer_marks and (yield from self.text.expect_after_space(self.answer_marks[0])):
            yield from self.text.skip_space()
            ends = (f"\n{self.answer_marks[1]}", self.answer_marks[1])
        may_call = self.finds_calls and (not self._calls_come_first or (yield from self._begins_with_call()))
        marks = Marks(*ends, *(self.openers if may_call else ()))
        while mark := (yield from self.text.pass_until(marks, self.add_content)):
            if mark not in ends:
                yield from self.try_call(mark)

    def _begins_with_call(self) -> Reading[bool]:
        """Read the calls at the beginning of the content; return whether there are any."""
        for opener in self.openers:
            if (yield from self.text.expect_after_space(opener)):
                return (yield from self.try_call(opener))
        return False

    def try_call(self, mark: str) -> Reading[bool]:
        """Read the calls after ``mark``; what turns out to be no call is content."""
        self.text.begin_record(mark)
        if (yield from self.read_calls(mark)):
            yield from self.text.skip_space()
            return True
        self.add_content(self.text.end_record())
        return False

    def read_calls(self, mark: str) -> Reading[bool]:
        """Read the calls that ``mark`` opens, and the mark that closes them; return whether there is one."""
        raise NotImplementedError

    def read_section(self, begin: str, read_call: Callable[[], Reading[bool]], end: str) -> Reading[bool]:
        """Read calls, each after ``begin``, up to ``end``, the mark that closes them; return whether there is one.

        ``read_call`` reads what comes after ``begin``, and returns whether that is a call.
        """
        has_call = False
        while (yield from self.text.expect_after_space(begin)):
            if not (yield from read_call()):
                return has_call
            has_call = True
        yield from self.text.expect_after_space(end)
        return has_call

    @property
    def finds_calls(self) -> bool:
        """Whether there are tools to call."""
        return self.tools is None or bool(self.tools)

    def find_schema(self, name: str) -> JsonSchema:
        """Return the JSON Schema of a tool's arguments, with local references; empty if it is not known."""
        try:
            found = json.loads((self.tools or {}).get(name, "{}"))
            return localize_references(found) if isinstance(found, dict) else {}
        except (ValueError, RecursionError):
            return {}

    def open_call(self, name: str, call_id: str = "") -> None:
        """Begin the next call."""
        self.text.forget_record()
        self._pieces.append(ToolCall(self._num_calls, name, id=call_id))
        self._num_calls += 1
        self._has_arguments = False

    def add_arguments(self, text: str) -> None:
        """Add a piece of the call's arguments."""
        if text:
            self._has_arguments = True
            self._pieces.append(ToolCall(self._num_calls - 1, arguments=text))

    def close_call(self) -> None:
        """End the call; without arguments, they are an empty object."""
        if not self._has_arguments:
            self.add_arguments("{}")

    def add_content(self, text: str) -> None:
        """Add content."""
        if text:
            self._pieces.append(Content(text))

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        if text:
            self._pieces.append(Reasoning(text))

    def _reason(self, text: str, *, is_last: bool = False) -> None:
        """Add reasoning; hold back newlines at its end, which belong to the mark that may follow."""
        inner = text if is_last else text.rstrip("\n")
        if inner or is_last:
            self.add_reasoning("\n" * self._num_newlines + inner)
            self._num_newlines = 0
        self._num_newlines += len(text) - len(inner)

    def _go_on(self) -> Sequence[Piece]:
        next(self._reading, None)
        pieces, self._pieces = self._pieces, []
        return pieces
