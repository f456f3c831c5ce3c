"""Parses harmony, the format of gpt-oss: messages with a header that says their kind.

Source: "OpenAI Harmony Response Format" (cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re

from parallax_core.api import AllowedAnswers, JsonScan
from parallax_models.parsers.answer_grammar import AnswerGrammar, quote, without
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading, Sink

START, CHANNEL, CONSTRAIN, MESSAGE, END = (
    f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end")
)
BEGINS = Marks(START, CHANNEL)
HEADER = re.compile(r"[^<\n]*")
INNER = (CHANNEL, CONSTRAIN)
END_MARKS = (END, "<|call|>", "<|return|>", START, CHANNEL)
ENDS = Marks(*END_MARKS)
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
ADDRESS = " to="
"""What an answer begins with if the prompt has the beginning of its header, and the rest names a tool."""
RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser(AnswerParser):
    """The channel ``analysis`` is reasoning; a message to ``functions.NAME`` is a call; all others are content."""

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """See `parallax_core.api.GrammarWriter`: messages that are no answer yet, then a call or the final message."""
        grammar, is_free = AnswerGrammar(allowed), not (allowed.answer or allowed.must_call)
        channel, message, text = grammar.text(CHANNEL), grammar.text(MESSAGE), without(*END_MARKS)
        kinds = f"({quote('analysis')} | {quote('commentary')})" if is_free else quote("analysis")
        next_message = f"{grammar.text(START)} {quote('assistant')}"
        note = f"({channel} {kinds} {message} {grammar.text_before(text, END)} {next_message})*"
        json = grammar.rule(f'(gap {grammar.text(CONSTRAIN)} "json" | " json")? {message}')
        options = [self._write_call(grammar, name, json) for name in allowed.tools]
        if is_free:
            options.append(f"{channel} {quote('final')} {message} {grammar.terminal(text)}")
        elif not allowed.must_call:
            options.append(f"{channel} {quote('final')} {json} answer")
        return grammar.write(f"{note} ({' | '.join(options)})")

    def _write_call(self, grammar: AnswerGrammar, name: str, json: str) -> str:
        """Return the grammar of a call, whose tool is named before or after the channel."""
        arguments, channel = grammar.json(grammar.allowed.tools[name]), grammar.text(CHANNEL)
        address, commentary = f"{ADDRESS}functions.{name}", quote("commentary")
        return (
            f"({channel} {quote('commentary' + address)} | {quote(address)} {channel} {commentary}) {json} {arguments}"
        )

    def read_answer(self) -> Reading[None]:
        """See `AnswerParser.read_answer`."""
        if (yield from self.text.expect(ADDRESS)):
            mark = ADDRESS
        else:
            mark = yield from self.text.pass_until(BEGINS, self.add_content)
        while mark:
            self.text.begin_record(mark)
            header = yield from self._read_header(mark)
            if header is None:
                self.add_content(self.text.end_record())
                mark = yield from self.text.pass_until(BEGINS, self.add_content)
                continue
            self.text.forget_record()
            mark = yield from self._read_message(header)
            if mark not in {START, CHANNEL}:
                mark = yield from self.text.pass_until(BEGINS, self.add_content)

    def _read_header(self, mark: str) -> Reading[str | None]:
        """Return the header of a message up to its text; None if it is no header."""
        header = mark
        while len(header) < 1024:  # noqa: PLR2004 -- no header is so long
            header += yield from self.text.read_match(HEADER)
            if (yield from self.text.expect(MESSAGE)):
                return header
            for inner in INNER:
                if (yield from self.text.expect(inner)):
                    header += inner
                    break
            else:
                return None
        return None

    def _read_message(self, header: str) -> Reading[str]:
        """Read the text of a message; return the mark that ends it."""
        channel, recipient = CHANNEL_NAME.search(header), RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        if name and self.finds_calls:
            self.open_call(name)
            mark = yield from self._read_arguments()
            self.close_call()
            return mark
        is_analysis = channel is not None and channel[1] == "analysis"
        sink: Sink = self.add_reasoning if is_analysis else self.add_content
        return (yield from self.text.pass_until(ENDS, sink))

    def _read_arguments(self) -> Reading[str]:
        """Read the arguments of a call; return the mark that ends them; marks within strings do not count."""
        scan = JsonScan()

        def add(text: str) -> None:
            scan.find_end(text, 0)
            self.add_arguments(text)

        while (mark := (yield from self.text.pass_until(ENDS, add))) and scan.is_in_string:
            add(mark)
        return mark
