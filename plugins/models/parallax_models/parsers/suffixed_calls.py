"""The parser of calls whose tags have a suffix of their checkpoint, as those of Hy4."""

from __future__ import annotations

import re

from parallax_core.api import AllowedAnswers, AnswerInfo
from parallax_models.parsers.answer_grammar import AnswerGrammar
from parallax_models.parsers.text_reader import Reading
from parallax_models.parsers.xml_calls import Glm4Parser
from parallax_models.parsers.xml_grammar import ValueMarks

ANY_SUFFIX = re.compile(r"[:\w.-]*")
IN_PROMPT = re.compile(r"</?(?:think|tool_calls?|arg_key|arg_value)(:[^\s<>]+)?>")


class HyV4Parser(Glm4Parser):
    """Hy4: the calls of GLM between ``<tool_calls>`` tags; all tags, of reasoning too, may end as ``:6124c78e>``.

    The suffix is that of the last tag in the prompt, or else of the first in the answer.
    Source: ``vllm/tool_parsers/hy_v4_tool_parser.py`` and ``vllm/reasoning/hy_v4_reasoning_parser.py`` of vLLM 0.32.0.
    """

    openers = written_openers = ("<tool_calls",)

    def __init__(self) -> None:
        super().__init__()
        self._is_known = False
        self._adopt("")

    def begin(self, answer: AnswerInfo) -> None:
        """See `parallax_core.api.Informed`."""
        if found := IN_PROMPT.findall(answer.prompt_end):
            self._is_known = True
            self._adopt(found[-1])
        super().begin(answer)

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """See `parallax_core.api.GrammarWriter`; without a tag in the prompt, tags have no suffix."""
        self.openers = self.written_openers = (f"<tool_calls{self._suffix}>",)
        return super().write_grammar(allowed)

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        del opener
        return grammar.repeat(call, end=(f"</tool_calls{self._suffix}>",))

    def read_reasoning(self) -> Reading[None]:
        """Read the reasoning, whose first tag tells the suffix if the prompt does not."""
        if not self._is_known and not self._thinks and (yield from self.text.expect("<think")):
            self.text.begin_record("<think")
            if not (yield from self._learn()):
                self.add_content(self.text.end_record())
                return
            self.text.forget_record()
            self._thinks = True
        yield from super().read_reasoning()

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        del mark
        if not (yield from self._learn()):
            return False
        return (yield from self.read_section(self.call[0], self._read_one, f"</tool_calls{self._suffix}>"))

    def _read_one(self) -> Reading[bool]:
        yield from self.text.skip_space()
        return (yield from self.read_call())

    def _learn(self) -> Reading[bool]:
        """Read the end of a tag; return whether it is one, of this checkpoint."""
        suffix = yield from self.text.read_match(ANY_SUFFIX)
        if not (yield from self.text.expect(">")) or (self._is_known and suffix != self._suffix):
            return False
        self._is_known = True
        self._adopt(suffix)
        return True

    def _adopt(self, suffix: str) -> None:
        """Write and read all tags with a suffix."""
        self._suffix = suffix
        self.thinking = (f"<think{suffix}>", f"</think{suffix}>")
        self.call, self.call_end = (f"<tool_call{suffix}>", ""), f"</tool_call{suffix}>"
        self.key = (f"<arg_key{suffix}>", f"</arg_key{suffix}>")
        self.value_begin, self.value_ends = f"<arg_value{suffix}>", (f"</arg_value{suffix}>",)
        self.value_marks = ValueMarks(end=f"</arg_value{suffix}>")
