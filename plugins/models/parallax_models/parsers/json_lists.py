"""Parsers of calls that are lists of JSON objects between marks."""

from __future__ import annotations

from typing import ClassVar

from parallax_models.parsers.answer_grammar import AnswerGrammar
from parallax_models.parsers.json_calls import JsonCallParser


class JsonListParser(JsonCallParser):
    """Calls are one list between two marks; a mark may end with the bracket of the list."""

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        closer = self.closers.get(opener)
        opening = () if opener.endswith("[") else ("[",)
        return grammar.repeat(call, opening=opening, between=",", end=("]", closer) if closer else "]")


class NemotronParser(JsonListParser):
    """Nemotron-H and Nemotron Nano 2: a list between ``<TOOLCALL>`` tags.

    Source: the chat template of nvidia/NVIDIA-Nemotron-Nano-9B-v2.
    """

    openers = ("<TOOLCALL>",)
    closers: ClassVar[dict[str, str]] = {"<TOOLCALL>": "</TOOLCALL>"}


class Phi4MiniParser(JsonListParser):
    """Phi-4-mini: ``functools`` and a list, or a list between ``<|tool_call|>`` tags.

    Source: the model card of microsoft/Phi-4-mini-instruct, and vLLM's parser ``phi4_mini_json``.
    """

    openers = ("<|tool_call|>", "functools[")
    closers: ClassVar[dict[str, str]] = {"<|tool_call|>": "<|/tool_call|>"}


class HunyuanParser(JsonListParser):
    """Hunyuan 1: a list between ``<tool_calls>`` tags, and after the reasoning an answer between ``<answer>`` tags.

    Source: the chat template of tencent/Hunyuan-A13B-Instruct.
    """

    openers = ("<tool_calls>",)
    closers: ClassVar[dict[str, str]] = {"<tool_calls>": "</tool_calls>"}
    answer_marks = ("<answer>", "</answer>")
