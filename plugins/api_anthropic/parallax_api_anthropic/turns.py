"""Turns the conversation and the tools of Anthropic's Messages API into those of a chat request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby

from parallax_api_anthropic.body_models import (
    AnyPart,
    CountTokensRequest,
    MessagePart,
    MessageTool,
    MessageToolChoice,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)
from parallax_chat_requests.chat_messages import (
    CalledFunction,
    ChatRequestMessage,
    Function,
    NamedFunction,
    NamedTool,
    RequestToolCall,
    Tool,
    ToolChoice,
)

BILLING_LINE = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts before the system prompt. It is different in every request and means
nothing to a model. (Claude Code, "Gateway protocol reference", system prompt attribution block.)"""


def list_messages(body: CountTokensRequest, *, keeps_billing_line: bool) -> list[ChatRequestMessage]:
    """Return the conversation as that of a chat request, the system prompt first.

    Args:
        body: the request.
        keeps_billing_line: keep the line of the system prompt that changes with every request.
    """
    system = join_text(body.system or "", drops_billing_line=not keeps_billing_line)
    first: list[tuple[str, AnyPart]] = [("system", MessagePart(type="text", text=system))] if system else []
    parts = first + [(message.role, part) for message in body.messages for part in message.parts]
    messages: list[ChatRequestMessage] = []
    for role, group in groupby(parts, key=lambda entry: entry[0]):
        of_role = [part for _, part in group]
        messages += [_make_answer(of_role)] if role == "assistant" else _make_turns(role, of_role)
    return messages


def make_tool(tool: MessageTool) -> Tool:
    """Return the tool of a chat request."""
    function = Function.model_construct(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool.model_construct(type="function", function=function)


def make_choice(choice: MessageToolChoice) -> ToolChoice:
    """Return the ``tool_choice`` of a chat request."""
    if choice.name is not None:
        return NamedTool.model_construct(type="function", function=NamedFunction.model_construct(name=choice.name))
    return "required" if choice.type == "any" else "none" if choice.type == "none" else "auto"


def join_text(content: str | Iterable[AnyPart], *, drops_billing_line: bool = False) -> str:
    """Return the text of a string, or of those parts that are text, each on a line of its own."""
    texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, MessagePart)]
    if drops_billing_line:
        texts = [text for text in map(drop_billing_line, texts) if text]
    return "\n".join(texts)


def drop_billing_line(text: str) -> str:
    """Return the text of a system prompt without the line that changes with every request, if it begins with it."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_LINE) else text


def _make_answer(parts: list[AnyPart]) -> ChatRequestMessage:
    """Return an earlier answer: its text, its reasoning and its tool calls."""
    calls = [
        RequestToolCall.model_construct(
            id=part.id,
            type="function",
            function=CalledFunction.model_construct(name=part.name, arguments=json.dumps(part.input)),
        )
        for part in parts
        if isinstance(part, ToolUsePart)
    ]
    reasoning = "\n".join(part.thinking for part in parts if isinstance(part, ThinkingPart))
    return ChatRequestMessage.model_construct(
        role="assistant", content=join_text(parts), tool_calls=calls or None, reasoning_content=reasoning or None
    )


def _make_turns(role: str, parts: list[AnyPart]) -> Iterator[ChatRequestMessage]:
    """Yield the results of tools, each as a turn of the role ``tool``, and the text between them."""
    for is_result, group in groupby(parts, key=lambda part: isinstance(part, ToolResultPart)):
        if not is_result:
            yield ChatRequestMessage.model_construct(role=role, content=join_text(group))
            continue
        for part in group:
            assert isinstance(part, ToolResultPart)
            content = join_text(part.content or "")
            yield ChatRequestMessage.model_construct(role="tool", content=content, tool_call_id=part.tool_use_id)
