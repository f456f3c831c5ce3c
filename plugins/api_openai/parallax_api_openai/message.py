"""Writes the pieces of chat answers in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parallax_api_openai.chat_replies import (
    ChatDelta,
    ChatMessage,
    FunctionCall,
    FunctionDelta,
    MessageToolCall,
    ToolCallDelta,
)
from parallax_core.api import Content, Piece, Reasoning, ToolCall
from parallax_core.api.dialect import make_call_id


def write_delta(piece: Piece) -> ChatDelta:
    """Return the ``delta`` of a chunk for a piece."""
    match piece:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning_content=text, reasoning=text)
        case ToolCall(index, "", arguments):
            return ChatDelta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))])
        case ToolCall(index, name, _, call_id):
            function = FunctionDelta(name=name, arguments="")
            call = ToolCallDelta(index=index, id=call_id or make_call_id(), type="function", function=function)
            return ChatDelta(tool_calls=[call])


@dataclass(slots=True)
class MessageParts:
    """The pieces of one answer, collected."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[ToolCall, list[str]]] = field(default_factory=list)
    """Each call with the pieces of its arguments."""

    def add(self, pieces: Sequence[Piece]) -> None:
        """Append pieces."""
        for piece in pieces:
            match piece:
                case Content(text):
                    self.content.append(text)
                case Reasoning(text):
                    self.reasoning.append(text)
                case ToolCall(name=""):
                    self.calls[-1][1].append(piece.arguments)
                case ToolCall():
                    self.calls.append((piece, []))

    def write(self) -> ChatMessage:
        """Return the ``message`` of a choice."""
        message = ChatMessage(content="".join(self.content))
        if self.reasoning:
            message.reasoning_content = message.reasoning = "".join(self.reasoning)
        if self.calls:
            message.content = message.content or None
            message.tool_calls = [_write_call(call, "".join(arguments)) for call, arguments in self.calls]
        return message


def _write_call(call: ToolCall, arguments: str) -> MessageToolCall:
    return MessageToolCall(id=call.id or make_call_id(), function=FunctionCall(call.name, arguments))
