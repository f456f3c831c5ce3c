"""Collects the content of a message in Anthropic's form, part by part."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from parallax_api_anthropic import replies
from parallax_core.api import Content, Piece, Reasoning, ToolCall
from parallax_core.api.dialect import make_call_id


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A text, the reasoning, or a tool call."""

    kind: type[Piece]
    opened: replies.MessageContentPart
    """The part as it begins, without its text."""
    texts: list[str] = field(default_factory=list)

    def write(self) -> replies.MessageContentPart:
        """Return the whole part."""
        text = "".join(self.texts)
        if self.kind is Reasoning:
            return replace(self.opened, thinking=text, signature=sign(text))
        return replace(self.opened, **({"input": read_input(text)} if self.kind is ToolCall else {"text": text}))

    def write_delta(self, text: str) -> replies.TextDelta | replies.ThinkingDelta | replies.InputDelta:
        """Return the ``delta`` for a piece of its text."""
        if self.kind is Reasoning:
            return replies.ThinkingDelta(text)
        if self.kind is ToolCall:
            return replies.InputDelta(text)
        return replies.TextDelta(text)


def open_part(piece: Piece) -> ContentPart:
    """Return the part that a piece begins."""
    match piece:
        case Reasoning():
            return ContentPart(Reasoning, replies.MessageThinking())
        case ToolCall(name=name):
            return ContentPart(ToolCall, replies.MessageToolUse(piece.id or f"toolu_{make_call_id()}", name))
        case _:
            return ContentPart(Content, replies.MessageText())


def read_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a tool call; empty if they are no object, as when the answer ended within them."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def sign(thinking: str) -> str:
    """Return the signature of a reasoning: a digest of its text."""
    return hashlib.sha256(thinking.encode()).hexdigest()
