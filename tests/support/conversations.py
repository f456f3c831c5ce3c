"""Conversations that chat templates are tried with, in the form of ``apply_chat_template``."""

from __future__ import annotations

from typing import Any

SYSTEM = {"role": "system", "content": "You are a <helpful> assistant. \n"}
USER = {"role": "user", "content": '  What is the weather in Zürich & "Köln"?\n'}
ANSWER = {"role": "assistant", "content": "It is sunny. <b>Really</b>"}
AGAIN = {"role": "user", "content": "And tomorrow?"}
REASONED = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2\nmake 4"}
FUNCTION = {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "units": None, "exact": True}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "abcd12345", "type": "function", "function": FUNCTION}],
}
SILENT = {"role": "assistant", "tool_calls": [{"id": "abcd12345", "type": "function", "function": FUNCTION}]}
RESULT = {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "abcd12345", "name": "get_weather"}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city's <name>"},
        "days": {"type": "integer", "default": 1},
        "units": {"enum": ["C", "F"], "type": "string"},
    },
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}
TOOLS = [TOOL, {"type": "function", "function": {"name": "stop", "description": "Ends."}}]

CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([USER], []),
    ([SYSTEM, USER], []),
    ([USER, ANSWER, AGAIN], []),
    ([SYSTEM, USER, ANSWER, AGAIN], []),
    ([USER, REASONED, AGAIN], []),
    ([USER], TOOLS),
    ([SYSTEM, USER], TOOLS),
    ([USER, CALL, RESULT], TOOLS),
    ([SYSTEM, USER, SILENT, RESULT], TOOLS),
    ([USER, CALL, RESULT, ANSWER, AGAIN], TOOLS),
]
"""Pairs of turns and tools; no tools: none were given."""
