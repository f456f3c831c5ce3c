from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import CompactedResponse
from pydantic import TypeAdapter

from parallax_api_responses.replies import CompactedReply
from plugins.api_responses.tests.responses_client import FUNCTION, ROUTE, THOUGHT, ask, error_of, post
from tests.unit.server.scripted import ScriptedSite, write_call

CLIENT_REPLY: TypeAdapter[Any] = TypeAdapter(CompactedResponse)
TURNS = [{"role": "user", "content": "make a file"}, {"role": "assistant", "content": "It is made."}]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def compact(site: ScriptedSite, script: str, **fields: Any) -> dict[str, Any]:
    """Return the part that stands for a conversation."""
    site.engine.scripts.append(script)
    answer = site.http.post(f"{ROUTE}/compact", json={"model": "toy", **fields})
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.text, type=CompactedReply)
    CLIENT_REPLY.validate_json(answer.text, strict=True)
    [part] = answer.json()["output"]
    assert part["type"] == "compaction"
    return dict(part)


def test_summary_stands_for_the_conversation(site: ScriptedSite) -> None:
    part = compact(site, f"{THOUGHT}A file was made.", input=TURNS, instructions="be kind")
    assert "<user>make a file" in site.prompt
    assert "<system>be kind" in site.prompt
    assert "Summarize this conversation" in site.prompt
    body = ask(site, "Yes.", input=[part, {"role": "user", "content": "and now?"}])
    assert "make a file" not in site.prompt
    assert "The conversation so far, summarized:\n\nA file was made." in site.prompt
    listed = site.http.get(f"{ROUTE}/{body['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert listed[0] == {**part, "status": "completed"}


def test_kept_conversation_can_be_compacted(site: ScriptedSite) -> None:
    call = write_call("look_up", {"word": "a"})
    first = ask(site, call, tools=[FUNCTION], input="one")
    compact(site, "Short.", previous_response_id=first["id"])
    assert "<user>one" in site.prompt
    assert "look_up" in site.prompt


def test_official_client_compacts(site: ScriptedSite) -> None:
    site.engine.scripts.append("Short.")
    turns: Any = TURNS
    assert site.openai.responses.compact(model="toy", input=turns).output[0].type == "compaction"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "tools": []}, "tools"),
        ({"input": "a", "model": 1}, "model"),
    ],
)
def test_invalid_field_is_named(site: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    assert error_of(site.http.post(f"{ROUTE}/compact", json={"model": "toy", **fields}))["param"] == param


def test_compaction_of_another_server_is_refused_by_name(site: ScriptedSite) -> None:
    part = {"type": "compaction", "encrypted_content": "gAAAA"}
    error = error_of(post(site, input=[part, {"role": "user", "content": "a"}]))
    assert error["param"] == "input.0.encrypted_content"


def test_empty_summary_is_an_error(site: ScriptedSite) -> None:
    site.engine.scripts.append("<|hidden|>")
    answer = site.http.post(f"{ROUTE}/compact", json={"model": "toy", "input": "a"})
    assert "the model wrote no summary" in error_of(answer, 500)["message"]
