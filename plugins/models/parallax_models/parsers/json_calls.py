"""Parsers of calls that are JSON objects with a name and arguments."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from parallax_grammar_tools.schema_refs import move_references
from parallax_models.parsers.answer_grammar import AnswerGrammar, not_after_space, quote
from parallax_models.parsers.answer_parser import AnswerParser
from parallax_models.parsers.text_reader import Reading, drop

NO_OBJECT = r"/[ \n]*[^{\[ \n](.|\n)*/"
"""A text that does not begin as a call, if calls have no mark before them."""
MISTRAL_NAME = re.compile(r"[^\s\[\]{}]*")
ARGUMENTS = frozenset({"arguments", "parameters"})
KEYS = ARGUMENTS | {"name", "id", "type"}
"""The keys of a call."""


class JsonCallParser(AnswerParser):
    """Calls are objects such as ``{"name": "look_up", "arguments": {...}}``: one, several, or a list of them."""

    closers: ClassVar[dict[str, str]] = {}
    """By opening mark, the mark after the calls, if the format has one."""
    must_be_known = False
    """Whether an object is a call only if a tool has that name."""
    must_have_arguments = False
    """Whether an object without arguments is no call."""

    arguments: ClassVar[str] = "arguments"
    """The key of the arguments, where the format says which."""

    def write_call(self, grammar: AnswerGrammar, name: str) -> str:
        """See `AnswerParser.write_call`."""
        own = move_references(json.loads(grammar.allowed.tools[name]), "#/$defs/tool")
        fields = {"name": {"const": name}, self.arguments: {"$ref": "#/$defs/tool"}}
        call = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        return grammar.json(json.dumps({**call, "$defs": {"tool": own}}))

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        if not (yield from self.read_objects(is_list=mark.endswith("["))):
            return False
        if closer := self.closers.get(mark):
            yield from self.text.expect_after_space(closer)
        return True

    def read_objects(self, *, is_list: bool = False) -> Reading[bool]:
        """Read one object, several, or a list of them, which may have begun; return whether there is a call."""
        if not is_list and (yield from self.text.skip_space()) == "[":
            is_list = yield from self.text.expect("[")
        if not (yield from self.read_object()):
            return False
        while (following := (yield from self.text.skip_space())) in {",", ";", "{"}:
            if following != "{":
                yield from self.text.expect(following)
            if not (yield from self.read_object()):
                break
        if is_list:
            yield from self.text.expect_after_space("]")
        return True

    def read_object(self) -> Reading[bool]:
        """Read one object; return whether it is a call."""
        yield from self.text.skip_space()
        if not (yield from self.text.expect("{")):
            return False
        call = JsonCall(self)
        while (yield from self.text.skip_space()) == '"':
            if not (yield from call.read_member()):
                break
            if (yield from self.text.skip_space()) != ",":
                break
            yield from self.text.expect(",")
        yield from self.text.expect_after_space("}")
        return call.close()


class JsonCall:
    """One object, member by member. The call begins once its name and the beginning of its arguments are known."""

    def __init__(self, parser: JsonCallParser) -> None:
        self._parser = parser
        self._text = parser.text
        self._name = self._id = ""
        self._is_open = False
        self._held: list[str] | None = None
        """The arguments, if they come before the name."""

    def read_member(self) -> Reading[bool]:
        """Read a key and its value; return whether both are there."""
        key: list[str] = []
        if not (yield from self._text.pass_json(key.append)):
            return False
        if not (yield from self._text.expect_after_space(":")):
            return False
        first, name = (yield from self._text.skip_space()), _read_string("".join(key))
        if self._parser.must_be_known and name not in KEYS:
            return False
        return (yield from self._read_value(name, first))

    def _read_value(self, key: str, first: str) -> Reading[bool]:
        if key in ARGUMENTS and first == "{" and self._may_open():
            self._open()
            return (yield from self._text.pass_json(self._parser.add_arguments))
        value: list[str] = []
        is_whole = yield from self._text.pass_json(drop if self._is_open else value.append)
        if self._is_open or not is_whole:
            return is_whole
        if key == "name":
            self._name = _read_string("".join(value))
        elif key == "id":
            self._id = _read_string("".join(value))
        elif key in ARGUMENTS:
            self._held = [_unwrap("".join(value))]
        self._open_held()
        return True

    def close(self) -> bool:
        """End the call; return whether it is one."""
        if not self._is_open and not self._parser.must_have_arguments and self._may_open():
            self._open()
        if self._is_open:
            self._parser.close_call()
        return self._is_open

    def _may_open(self) -> bool:
        tools = self._parser.tools
        return bool(self._name) and (not self._parser.must_be_known or tools is None or self._name in tools)

    def _open(self) -> None:
        self._is_open = True
        self._parser.open_call(self._name, self._id)

    def _open_held(self) -> None:
        if self._held is not None and self._may_open():
            self._open()
            for text in self._held:
                self._parser.add_arguments(text)


def _read_string(text: str) -> str:
    """Return the string in a JSON text; empty if it is not a string."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _unwrap(text: str) -> str:
    """Return arguments that some models write as a string with JSON in it, and null for none, as an object."""
    inner = _read_string(text) if text.startswith('"') else text
    return "{}" if text == "null" else inner or text


class HermesParser(JsonCallParser):
    """Hermes, Qwen2.5, Qwen3, Granite 4: each object between ``<tool_call>`` and ``</tool_call>``.

    Source: the chat templates of NousResearch/Hermes-3-Llama-3.1-8B and Qwen/Qwen3-8B.
    """

    openers = ("<tool_call>",)
    closers: ClassVar[dict[str, str]] = {"<tool_call>": "</tool_call>"}

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        closer = self.closers[opener]
        return grammar.repeat(call, between=(closer, opener), end=(closer,))


class GraniteParser(JsonCallParser):
    """Granite 3: ``<|tool_call|>``, then a list of objects. 3.0 writes ``<tool_call>`` instead.

    Source: the chat templates of ibm-granite/granite-3.1-8b-instruct and granite-3.0-8b-instruct.
    """

    openers = ("<|tool_call|>", "<tool_call>")
    closers: ClassVar[dict[str, str]] = {"<tool_call>": "</tool_call>"}

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        closers = [self.closers[opener]] if opener in self.closers else []
        return grammar.repeat(call, opening="[", between=",", end=("]", *closers))


class MinimaxM1Parser(JsonCallParser):
    """MiniMax M1: objects, one on each line, between ``<tool_calls>`` and ``</tool_calls>``.

    Source: the function call guide of MiniMaxAI/MiniMax-M1-80k.
    """

    openers = ("<tool_calls>",)
    closers: ClassVar[dict[str, str]] = {"<tool_calls>": "</tool_calls>"}

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`."""
        return grammar.repeat(call, end=(self.closers[opener],))


class Llama3Parser(JsonCallParser):
    """Llama 3.1 to 3.3: an answer is one object, or several joined by ``;``, after an optional ``<|python_tag|>``.

    Source: the chat template of meta-llama/Llama-3.1-8B-Instruct.
    """

    must_be_known = must_have_arguments = True
    arguments = "parameters"
    before: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    """The marks that may come before the calls, in this order."""
    after: ClassVar[str] = ""
    """The mark that may come after them."""
    separator: ClassVar[str] = ";"
    """What is between two calls."""

    def write_content(self, grammar: AnswerGrammar, call: str, text: str) -> str:
        """See `AnswerParser.write_content`."""
        between = [self.separator] if self.separator else []
        calls = f"space ({grammar.text(self.before[0])} space)? {grammar.repeat(call, between=between)}"
        if not text:
            return calls
        free = f"{text} & {NO_OBJECT} & {not_after_space(self.before[0])}"
        return f"{grammar.terminal(free)} | space | {calls}"

    def read_content(self) -> Reading[None]:
        """See `AnswerParser.read_content`."""
        if self.finds_calls:
            self.text.begin_record("")
            for mark in self.before:
                yield from self.text.expect_after_space(mark)
            first = yield from self.text.skip_space()
            if first not in {"{", "["} or not (yield from self.read_objects()):
                self.add_content(self.text.end_record())
            elif self.after:
                yield from self.text.expect_after_space(self.after)
        yield from super().read_content()


class Llama4JsonParser(Llama3Parser):
    """Llama 4, by its own template: one object, or several, after or between its marks of Python.

    Source: the chat template of meta-llama/Llama-4-Scout-17B-16E-Instruct.
    """

    before = ("<|python_start|>", "<|python_end|>")
    after = "<|python_end|>"
    separator = ""


class MistralParser(JsonCallParser):
    """Mistral: ``[TOOL_CALLS]``, then a list of objects, or a name, ``[ARGS]`` and the arguments of one call.

    Source: the chat templates of mistralai/Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2-24B-Instruct-2506.
    """

    thinking = ("[THINK]", "[/THINK]")
    openers = ("[TOOL_CALLS]",)

    def write_calls(self, grammar: AnswerGrammar, call: str, opener: str) -> str:
        """See `AnswerParser.write_calls`; newer models have a token between the name and the arguments."""
        listed = grammar.repeat(call, opening="[", between=",", end="]")
        if not (between := grammar.allowed.find_special("[ARGS]")):
            return listed
        between = f"({grammar.text('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)? {between}"
        tools = grammar.allowed.tools.items()
        named = grammar.rule(" | ".join(f"{quote(name)} {between} {grammar.json(schema)}" for name, schema in tools))
        return f"({listed} | {grammar.repeat(named, between=(opener,))})"

    def read_calls(self, mark: str) -> Reading[bool]:
        """See `AnswerParser.read_calls`."""
        if (yield from self.text.skip_space()) in {"[", "{"}:
            return (yield from super().read_calls(mark))
        name, call_id = (yield from self.text.read_match(MISTRAL_NAME)), ""
        if (yield from self.text.expect("[CALL_ID]")):
            call_id = yield from self.text.read_match(MISTRAL_NAME)
        yield from self.text.expect("[ARGS]")
        if not name or (yield from self.text.skip_space()) != "{":
            return False
        self.open_call(name, call_id)
        yield from self.text.pass_json(self.add_arguments)
        self.close_call()
        return True
