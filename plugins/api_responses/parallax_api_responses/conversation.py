"""Turns the input and the tools of a request to the Responses API into those of a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_api_responses.body_models import ResponsesRequest
from parallax_api_responses.input_models import (
    InputCall,
    InputCompaction,
    InputCustomCall,
    InputMessage,
    InputReasoning,
    InputResult,
    PartReference,
)
from parallax_api_responses.reasoning_code import decode_text
from parallax_api_responses.tool_models import CustomTool, GrammarFormat, PlacedTool, join_names
from parallax_chat_requests.chat_messages import CalledFunction, ChatRequestMessage, Function, RequestToolCall, Tool

ARGUMENT = "input"
"""The only argument of the function that stands for a custom tool: the tool's input."""
SUMMARY = "The conversation so far, summarized:"
"""The line before the summary of a conversation."""
SYSTEM = ("system", "developer")
"""The roles of system messages."""

ConversationPart = InputMessage | InputReasoning | InputCall | InputCustomCall | InputResult | InputCompaction


def list_messages(body: ResponsesRequest, history: Sequence[ConversationPart] = ()) -> list[ChatRequestMessage]:
    """Return the conversation as that of a chat request.

    System messages before all others, the instructions first, become one, since many chat templates take only one.
    ``history``: the parts before the input.

    Raises:
        InvalidRequest: if a reasoning cannot be decoded; it names the field.
    """
    parts = [*history, *list_input(body)]
    first = next((at for at, part in enumerate(parts) if not _is_system(part)), len(parts))
    system = [body.instructions, *(part.text for part in parts[:first] if isinstance(part, InputMessage))]
    turns = ConversationTurns()
    if text := "\n\n".join(each for each in system if each):
        turns.add_message("system", text)
    for at, part in enumerate(parts[first:], first - len(history)):
        turns.add(part, f"input.{at}")
    return turns.end()


def list_input(body: ResponsesRequest) -> list[ConversationPart]:
    """Return the parts of the input, without references; a text is a message of the user."""
    if isinstance(body.input, str):
        return [InputMessage.model_construct(role="user", content=body.input)]
    return [part for part in body.input if not isinstance(part, PartReference)]


def _is_system(part: ConversationPart) -> bool:
    return isinstance(part, InputMessage) and part.role in SYSTEM


@dataclass(slots=True)
class ConversationTurns:
    """The messages so far, and the parts of an answer that is not complete."""

    messages: list[ChatRequestMessage] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[RequestToolCall] = field(default_factory=list)

    def add(self, part: ConversationPart, path: str) -> None:
        """Add a part of the input, which is at ``path`` in the body."""
        match part:
            case InputReasoning():
                self.reasoning.append(_read_reasoning(part, f"{path}.encrypted_content"))
            case InputCall():
                self._add_call(part, part.arguments)
            case InputCustomCall():
                self._add_call(part, json.dumps({ARGUMENT: part.input}, ensure_ascii=False))
            case InputResult():
                self._end_answer()
                content, call_id = part.text, part.call_id
                self.messages.append(
                    ChatRequestMessage.model_construct(role="tool", content=content, tool_call_id=call_id)
                )
            case InputCompaction():
                summary = decode_text(part.encrypted_content, f"{path}.encrypted_content")
                self.add_message("user", f"{SUMMARY}\n\n{summary}")
            case InputMessage(role="assistant"):
                self.texts.append(part.text)
            case _:
                self.add_message(part.role, part.text)

    def add_message(self, role: str, text: str) -> None:
        """Add a message that is no answer."""
        self._end_answer()
        self.messages.append(ChatRequestMessage.model_construct(role=role, content=text))

    def end(self) -> list[ChatRequestMessage]:
        """Return all messages."""
        self._end_answer()
        return self.messages

    def _add_call(self, part: InputCall | InputCustomCall, arguments: str) -> None:
        called = CalledFunction.model_construct(name=join_names(part.namespace or "", part.name), arguments=arguments)
        self.calls.append(RequestToolCall.model_construct(id=part.call_id, type="function", function=called))

    def _end_answer(self) -> None:
        """Complete an answer of several parts."""
        if not (self.texts or self.reasoning or self.calls):
            return
        message = ChatRequestMessage.model_construct(
            role="assistant",
            content="\n".join(self.texts),
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.reasoning) or None,
        )
        self.messages.append(message)
        self.texts, self.reasoning, self.calls = [], [], []


def _read_reasoning(part: InputReasoning, path: str) -> str:
    texts = [each.text for each in part.content or part.summary or ()]
    if not texts and part.encrypted_content:
        return decode_text(part.encrypted_content, path)
    return "\n".join(texts)


def make_tools(tools: Sequence[PlacedTool]) -> list[Tool]:
    """Return the tools of a chat request; a custom tool becomes a function with the argument `ARGUMENT`."""
    return [Tool.model_construct(type="function", function=_make_function(tool)) for tool in tools]


def _make_function(placed: PlacedTool) -> Function:
    tool = placed.tool
    if not isinstance(tool, CustomTool):
        return Function.model_construct(
            name=placed.full_name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
    return Function.model_construct(
        name=placed.full_name, description=_describe_custom(tool), parameters=_make_schema(tool)
    )


def _describe_custom(tool: CustomTool) -> str:
    """Return the description of a custom tool, with the grammar of its input."""
    parts = [tool.description or "", f"The argument `{ARGUMENT}` is the whole input of the tool, as text."]
    if isinstance(tool.format, GrammarFormat):
        parts.append(f"It must match this grammar ({tool.format.syntax}):\n{tool.format.definition}")
    return "\n\n".join(part for part in parts if part)


def _make_schema(tool: CustomTool) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    if isinstance(tool.format, GrammarFormat) and tool.format.syntax == "regex":
        text["pattern"] = f"^(?:{tool.format.definition})$"
    return {"type": "object", "properties": {ARGUMENT: text}, "required": [ARGUMENT], "additionalProperties": False}
