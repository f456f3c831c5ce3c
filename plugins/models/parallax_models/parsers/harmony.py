"""Parses harmony, the format of gpt-oss, whose messages say in a header what they are.

Source: "OpenAI Harmony Response Format" (cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re

from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.marks import Marks
from parallax_models.parsers.text_reader import Reading, Sink

MESSAGE = "<|message|>"
BEGINS = Marks("<|start|>", "<|channel|>")
HEADER = re.compile(r"[^<\n]*")
INNER = ("<|channel|>", "<|constrain|>")
ENDS = Marks("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser(AnswerParser):
    """The channel ``analysis`` is reasoning; a message to ``functions.NAME`` is a call; all others are content."""

    def read_answer(self) -> Reading[None]:
        """See `AnswerParser.read_answer`."""
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
            if mark not in {"<|start|>", "<|channel|>"}:
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
        channel, recipient = CHANNEL.search(header), RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        if name and self.finds_calls:
            self.open_call(name)
            mark = yield from self.text.pass_until(ENDS, self.add_arguments)
            self.close_call()
            return mark
        is_analysis = channel is not None and channel[1] == "analysis"
        sink: Sink = self.add_reasoning if is_analysis else self.add_content
        return (yield from self.text.pass_until(ENDS, sink))
