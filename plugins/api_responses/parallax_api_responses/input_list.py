"""Writes a response's input as the API lists it: with ids, a status, and content in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parallax_api_responses.writer import PREFIX
from parallax_core.api.bodies import JsonObject

KINDS = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}
"""The beginning of the id of a part, by its type."""


def list_input(response_id: str, parts: Sequence[dict[str, Any]]) -> list[JsonObject]:
    """Return the parts of an input, in their order; parts without an id get one that is always the same."""
    base = response_id.removeprefix(PREFIX)
    return [_write_part(part, f"{base}i{number:04x}") for number, part in enumerate(parts)]


def list_kept_input(response_id: str, data: bytes) -> list[JsonObject]:
    """Return the parts of an input that is kept as a JSON list, as `list_input` does."""
    return list_input(response_id, msgspec.json.decode(data))


def _write_part(part: dict[str, Any], number: str) -> JsonObject:
    kind = part.get("type", "message")
    written: JsonObject = {"id": f"{KINDS[kind]}_{number}", "status": "completed", **part, "type": kind}
    if kind == "message":
        is_answer, content = part["role"] == "assistant", part["content"]
        if isinstance(content, str):
            content = [{"type": "output_text" if is_answer else "input_text", "text": content}]
        written["content"] = [_write_text(each) for each in content]
    elif kind == "reasoning":
        written["summary"] = part.get("summary", [])
    return written


def _write_text(text: dict[str, Any]) -> dict[str, Any]:
    return {**text, "annotations": []} if text["type"] == "output_text" else text
