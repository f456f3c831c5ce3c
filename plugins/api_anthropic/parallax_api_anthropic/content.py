"""Collects the content of a message in Anthropic's form, part by part."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from parallax_core.api import Content, Piece, Reasoning, ToolCall
from parallax_core.api.bodies import JsonObject
from parallax_core.api.dialect import make_call_id


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A text, the reasoning, or a tool call."""

    kind: type[Piece]
    opened: JsonObject
    """The part as it begins, without its text."""
    texts: list[str] = field(default_factory=list)

    def write(self) -> JsonObject:
        """Return the whole part."""
        text = "".join(self.texts)
        if self.kind is Reasoning:
            return {**self.opened, "thinking": text, "signature": sign(text)}
        return {**self.opened, "input": read_input(text)} if self.kind is ToolCall else {**self.opened, "text": text}

    def write_delta(self, text: str) -> JsonObject:
        """Return the ``delta`` for a piece of its text."""
        if self.kind is Reasoning:
            return {"type": "thinking_delta", "thinking": text}
        if self.kind is ToolCall:
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": "text_delta", "text": text}


def open_part(piece: Piece) -> ContentPart:
    """Return the part that a piece begins."""
    match piece:
        case Reasoning():
            return ContentPart(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
        case ToolCall(name=name):
            call: JsonObject = {
                "type": "tool_use",
                "id": piece.id or f"toolu_{make_call_id()}",
                "name": name,
                "input": {},
                "caller": {"type": "direct"},
                "toolset_name": None,
            }
            return ContentPart(ToolCall, call)
        case _:
            return ContentPart(Content, {"type": "text", "text": "", "citations": []})


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
