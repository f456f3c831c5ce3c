"""Asks a scripted server for responses, and checks each by our schemas and those of the official client."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from parallax_api_responses import store
from parallax_api_responses.replies import AnyResponseEvent, ResponsesReply
from parallax_api_responses.store_schema import open_database
from tests.unit.server.scripted import ScriptedSite
from tests.unit.server.sdkfields import list_missing

ROUTE = "/v1/responses"
EVENTS = {name: kind for kind in get_args(AnyResponseEvent) for name in get_args(get_type_hints(kind)["type"])}
"""The class of each event."""
ENDS = {"created": {"queued", "in_progress"}, "incomplete": {"incomplete", "cancelled"}}
"""The statuses of a response in an event whose name is not the status."""
CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CLIENT_RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)

FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "description": "Looks up a word.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Applies a patch."}
NAMESPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
}
THOUGHT = "<think>\nLet me think.\n</think>\n\n"


def note_databases(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return a list that gets the database of each store that is opened from now on, to fill its disk."""
    found = list[sqlite3.Connection]()

    def note(path: Path | None) -> sqlite3.Connection:
        found.append(open_database(path))
        return found[-1]

    monkeypatch.setattr(store, "open_database", note)
    return found


def post(site: ScriptedSite, script: str = "", **fields: Any) -> Any:
    """Return the HTTP response to a request, if the engine writes ``script``."""
    if script:
        site.engine.scripts.append(script)
    return site.http.post(ROUTE, json={"model": "toy", "input": "hi", **fields})


def ask(site: ScriptedSite, script: str, **fields: Any) -> dict[str, Any]:
    """Return the whole response."""
    answer = post(site, script, **fields)
    assert answer.status_code == 200, answer.text
    return check_response(answer.text)


def stream(site: ScriptedSite, script: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of the response."""
    answer = post(site, script, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return read_events(answer.text)


def check_response(text: str) -> dict[str, Any]:
    """Check a response, and return it."""
    msgspec.json.decode(text, type=ResponsesReply)
    parsed = CLIENT_RESPONSE.validate_json(text, strict=True)
    # They are in the reference, and not in this version of the client.
    assert set(parsed.model_extra or ()) <= {"store", "presence_penalty", "frequency_penalty"}
    found: dict[str, Any] = json.loads(text)
    missing = {*list_missing(parsed, found)}
    assert {name for name in missing if name.startswith("Response.")} == set()
    assert list(list_missing(parsed, found, only_required=True)) == []
    return found


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked."""
    found: list[dict[str, Any]] = []
    for event in text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        data = data.removeprefix("data: ")
        parsed = CLIENT_EVENT.validate_json(data, strict=True)
        found.append(json.loads(data))
        msgspec.json.decode(data, type=EVENTS[found[-1]["type"]])
        assert name == f"event: {found[-1]['type']}"
        assert parsed.type == found[-1]["type"]
        assert not parsed.model_extra
        assert list(list_missing(parsed, found[-1], only_required=True)) == []
        if "response" in found[-1]:
            response = check_response(json.dumps(found[-1]["response"]))
            kind = name.removeprefix("event: response.")
            assert response["status"] in ENDS.get(kind, {kind})
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events without their common beginning; neighbours of one type are one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]]


def error_of(answer: Any, status: int = 400) -> dict[str, Any]:
    """Return the error of an answer."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error
