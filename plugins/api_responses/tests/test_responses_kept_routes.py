"""Responses that are kept, and those in the background, on the whole way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from parallax_api_responses import keeper
from parallax_core.node.pipeline.unread import MOST_BYTES
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from plugins.api_responses.tests.responses_client import (
    CUSTOM,
    FUNCTION,
    ROUTE,
    THOUGHT,
    ask,
    check_response,
    error_of,
    kinds,
    note_databases,
    post,
    read_events,
    stream,
)
from tests.unit.server.scripted import ScriptedSite, write_call

KEYS = ServerOptions(keys=ApiKeys({"secret": "user", "other": "user", "boss": "admin"}))
ME, OTHER, BOSS = ({"Authorization": f"Bearer {key}"} for key in ("secret", "other", "boss"))
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def get(site: ScriptedSite, path: str, **query: Any) -> Any:
    return site.http.get(f"{ROUTE}/{path}", params=query)


def wait_for(site: ScriptedSite, name: str) -> dict[str, Any]:
    """Return a response in the background once it has ended: its events end then."""
    read_events(get(site, name, stream=True).text)
    return check_response(get(site, name).text)


def test_response_can_be_retrieved(site: ScriptedSite) -> None:
    body = ask(site, "Hello.")
    assert body["store"] is True
    assert check_response(get(site, body["id"]).text) == body
    final = stream(site, "Hello.")[-1]["response"]
    assert check_response(get(site, final["id"]).text) == final


def test_cut_response_can_be_retrieved(site: ScriptedSite) -> None:
    body = ask(site, "Hello there.", max_output_tokens=4)
    assert check_response(get(site, body["id"]).text)["status"] == "incomplete"


def test_response_that_is_not_to_be_kept_is_not(site: ScriptedSite) -> None:
    body = ask(site, "Hello.", store=False)
    assert body["store"] is False
    assert error_of(get(site, body["id"]), 404)["code"] == "not_found"


def test_conversation_goes_on_from_a_response(site: ScriptedSite) -> None:
    first = ask(site, f"{THOUGHT}Hello.", input="one", instructions="be kind")
    second = ask(site, "Yes.", input=[{"role": "user", "content": "two"}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert "be kind" not in site.prompt, "instructions are of one request only"
    ask(site, "Yes.", input="three", previous_response_id=second["id"], store=False)
    texts = ["<user>one", "<assistant>Hello.(Let me think.)", "<user>two", "<assistant>Yes.", "<user>three"]
    places = [site.prompt.index(text) for text in texts]
    assert places == sorted(places)


def test_result_of_a_call_goes_on_from_its_response(site: ScriptedSite) -> None:
    tools = [FUNCTION, CUSTOM]
    first = ask(site, write_call("apply_patch", {"input": "a b"}), tools=tools)
    number = first["output"][0]["call_id"]
    result = {"type": "custom_tool_call_output", "call_id": number, "output": "done"}
    ask(site, "Yes.", tools=tools, input=[result], previous_response_id=first["id"])
    assert f'[{number} apply_patch {{"input": "a b"}}]' in site.prompt
    assert f"<tool>done#{number}" in site.prompt


def test_unknown_previous_response_is_refused_by_name(site: ScriptedSite) -> None:
    error = error_of(post(site, previous_response_id="resp_unknown"))
    assert (error["param"], "'resp_unknown'" in error["message"]) == ("previous_response_id", True)
    first = ask(site, "Hello.")
    second = ask(site, "Hello.", previous_response_id=first["id"])
    assert site.http.delete(f"{ROUTE}/{first['id']}").json() == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    assert first["id"] in error_of(post(site, previous_response_id=second["id"]))["message"]


def test_conversation_that_is_too_large_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LEAST_HISTORY", 1000)
    with ScriptedSite(tmp_path, options=ServerOptions(max_body_bytes=1000)) as site:
        first = ask(site, "Hello. " * 200)
        error = error_of(post(site, previous_response_id=first["id"]))
    assert (error["param"], "more than 1000 bytes" in error["message"]) == ("previous_response_id", True)


class Unread:
    """A stream that holds what it holds."""

    unread = 0

    def cut(self, reason: str) -> None:
        del reason


def test_stream_of_events_leaves_nothing_counted(site: ScriptedSite) -> None:
    site.engine.scripts.append("Hello.")
    name = post(site, background=True).json()["id"]
    wait_for(site, name)
    assert get(site, name, stream=True).text.count("event: ") > 5
    backlog = site.models.backlog
    assert backlog.num_bytes == 0
    backlog.add(Unread(), MOST_BYTES)
    for query in ({"stream": True}, {}):
        assert error_of(get(site, name, **query), 429)["code"] == "overloaded"


def test_deleted_response_is_gone(site: ScriptedSite) -> None:
    name = ask(site, "Hello.")["id"]
    assert site.http.delete(f"{ROUTE}/{name}").status_code == 200
    assert error_of(site.http.delete(f"{ROUTE}/{name}"), 404)
    assert error_of(get(site, name), 404)


def test_response_belongs_to_its_key(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=KEYS) as site:
        site.engine.scripts += ["Hello."] * 3
        body = {"model": "toy", "input": "hi"}
        name = site.http.post(ROUTE, json=body, headers=ME).json()["id"]
        for headers, status in ((OTHER, 404), (BOSS, 404), ({}, 401)):
            error_of(site.http.get(f"{ROUTE}/{name}", headers=headers), status)
            error_of(site.http.get(f"{ROUTE}/{name}/input_items", headers=headers), status)
            error_of(site.http.post(f"{ROUTE}/{name}/cancel", headers=headers), status)
            error_of(site.http.delete(f"{ROUTE}/{name}", headers=headers), status)
        error = error_of(site.http.post(ROUTE, json={**body, "previous_response_id": name}, headers=OTHER))
        assert error["param"] == "previous_response_id"
        assert site.http.get(f"{ROUTE}/{name}", headers=ME).status_code == 200


def test_running_response_belongs_to_its_key(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=KEYS) as site:
        site.engine.gate = asyncio.Event()
        site.engine.scripts.append("Hello.")
        body = {"model": "toy", "input": "hi", "background": True}
        name = site.http.post(ROUTE, json=body, headers=ME).json()["id"]
        for headers, status in ((OTHER, 404), (BOSS, 404), ({}, 401)):
            error_of(site.http.get(f"{ROUTE}/{name}", headers=headers), status)
            error_of(site.http.post(f"{ROUTE}/{name}/cancel", headers=headers), status)
            error_of(site.http.delete(f"{ROUTE}/{name}", headers=headers), status)
        assert site.http.get(f"{ROUTE}/{name}", headers=ME).json()["status"] == "queued"
        site.http.portal.call(site.engine.gate.set)  # type: ignore[union-attr]


def test_input_is_listed_in_pages(site: ScriptedSite) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "three"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "four"}]},
        {"type": "message", "id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "five"}]},
    ]
    name = ask(site, "Yes.", input=parts, tools=[FUNCTION, CUSTOM])["id"]
    listed: list[dict[str, Any]] = []
    query: dict[str, Any] = {"order": "asc", "limit": 3}
    page: dict[str, Any] = {"has_more": True}
    while page["has_more"]:
        page = get(site, f"{name}/input_items", **query).json()
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        listed += page["data"]
        query["after"] = page["last_id"]
    assert [part["type"] for part in listed] == [part.get("type", "message") for part in parts]
    assert len({part["id"] for part in listed}) == len(parts)
    assert listed[-1]["id"] == "msg_mine"
    assert listed[0]["content"] == [{"type": "input_text", "text": "one"}]
    assert listed[1]["content"] == [{"type": "output_text", "text": "two", "annotations": []}]
    for part in listed:
        ITEM.validate_json(json.dumps(part), strict=True)
    newest_first = get(site, f"{name}/input_items").json()
    assert (newest_first["data"], newest_first["has_more"]) == (listed[::-1], False)
    assert [part.id for part in site.openai.responses.input_items.list(name, limit=2)] == [
        part["id"] for part in listed[::-1]
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")],
)
def test_invalid_query_of_a_list_is_named(site: ScriptedSite, query: dict[str, Any], param: str) -> None:
    name = ask(site, "Yes.")["id"]
    assert error_of(get(site, f"{name}/input_items", **query))["param"] == param


def test_text_input_is_one_message(site: ScriptedSite) -> None:
    name = ask(site, "Yes.", input="hello")["id"]
    [part] = get(site, f"{name}/input_items").json()["data"]
    assert (part["role"], part["content"]) == ("user", [{"type": "input_text", "text": "hello"}])


def test_response_in_the_background_goes_on_by_itself(site: ScriptedSite) -> None:
    body = ask(site, f"{THOUGHT}Hello.", background=True)
    assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
    final = wait_for(site, body["id"])
    assert (final["status"], final["output"][1]["content"][0]["text"]) == ("completed", "Hello.")
    assert get(site, f"{body['id']}/input_items").json()["data"][0]["role"] == "user"
    ask(site, "Yes.", previous_response_id=body["id"])
    assert "<assistant>Hello." in site.prompt


def test_stream_in_the_background_begins_in_the_queue(site: ScriptedSite) -> None:
    events = stream(site, "Hello.", background=True)
    assert kinds(events)[:4] == ["created", "queued", "in_progress", "output_item.added"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("after", [None, 0, 3, 5, 1000])
def test_stream_can_be_resumed_after_any_event(site: ScriptedSite, after: int | None) -> None:
    events = stream(site, "Hello there.", background=True)
    name = events[0]["response"]["id"]
    query = {} if after is None else {"starting_after": after}
    text = get(site, name, stream=True, **query).text
    again = [json.loads(event.split("data: ")[1]) for event in text.split("\n\n")[:-1]]
    assert again == events[0 if after is None else after + 1 :]


def test_stream_can_be_resumed_while_it_runs(site: ScriptedSite) -> None:
    site.engine.gate = asyncio.Event()
    name = ask(site, "Hello.", background=True)["id"]
    assert check_response(get(site, name).text)["status"] == "queued"
    site.http.portal.start_task_soon(_open, site.engine.gate)  # type: ignore[union-attr]
    events = read_events(get(site, name, stream=True).text)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."


async def _open(gate: asyncio.Event) -> None:
    for _ in range(50):
        await asyncio.sleep(0)
    gate.set()


def test_response_in_the_background_can_be_cancelled(site: ScriptedSite) -> None:
    site.engine.gate = asyncio.Event()
    name = ask(site, "Hello.", background=True)["id"]
    cancelled = check_response(site.http.post(f"{ROUTE}/{name}/cancel").text)
    assert (cancelled["status"], cancelled["completed_at"]) == ("cancelled", None)
    assert check_response(get(site, name).text) == cancelled
    assert check_response(site.http.post(f"{ROUTE}/{name}/cancel").text) == cancelled, "twice is harmless"
    events = read_events(get(site, name, stream=True).text)
    assert events[-1]["type"] == "response.incomplete"


def test_response_in_the_foreground_cannot_be_cancelled(site: ScriptedSite) -> None:
    name = ask(site, "Hello.")["id"]
    assert "background" in error_of(site.http.post(f"{ROUTE}/{name}/cancel"))["message"]
    assert error_of(get(site, name, stream=True))["param"] == "stream"
    assert error_of(get(site, name, starting_after=3))["param"] == "starting_after"


def test_running_response_can_be_deleted(site: ScriptedSite) -> None:
    site.engine.gate = asyncio.Event()
    name = ask(site, "Hello.", background=True)["id"]
    assert site.http.delete(f"{ROUTE}/{name}").status_code == 200
    assert error_of(get(site, name), 404)


def test_running_response_cannot_be_continued(site: ScriptedSite) -> None:
    site.engine.gate = asyncio.Event()
    name = ask(site, "Hello.", background=True)["id"]
    assert "is not complete" in error_of(post(site, previous_response_id=name))["message"]
    site.http.post(f"{ROUTE}/{name}/cancel")


def test_client_may_run_a_limited_number_in_the_background(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(max_concurrent=2)) as site:
        site.engine.gate = asyncio.Event()
        names = [ask(site, "Hello.", background=True)["id"] for _ in range(2)]
        assert "2 responses running" in error_of(post(site, background=True), 429)["message"]
        site.http.post(f"{ROUTE}/{names[0]}/cancel")
        ask(site, "Hello.", background=True)


def test_background_needs_a_kept_response(site: ScriptedSite) -> None:
    assert error_of(post(site, background=True, store=False))["param"] == "background"


def test_server_without_a_store_keeps_nothing(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(response_bytes=0)) as site:
        body = ask(site, "Hello.")
        assert body["store"] is False
        error_of(get(site, body["id"]), 404)
        assert error_of(post(site, store=True))["param"] == "store"
        assert error_of(post(site, background=True))["param"] == "background"
        assert error_of(post(site, previous_response_id="resp_1"))["param"] == "previous_response_id"


def test_official_client_uses_all_routes(site: ScriptedSite) -> None:
    client = site.openai.responses
    site.engine.scripts += ["Hello.", "Yes."]
    first = client.create(model="toy", input="hi")
    assert client.retrieve(first.id) == first
    second = client.create(model="toy", input="hi", previous_response_id=first.id, background=True, stream=True)
    events = list(second)
    name = events[0].response.id  # type: ignore[union-attr]
    resumed = list(client.retrieve(name, stream=True, starting_after=2))
    assert [event.sequence_number for event in resumed] == [event.sequence_number for event in events[3:]]
    assert client.cancel(name).status == "completed"
    client.delete(name)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(name)


def test_answer_arrives_if_it_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = note_databases(monkeypatch)
    with ScriptedSite(tmp_path, options=ServerOptions(response_store=tmp_path / "store")) as site:
        databases[0].execute("PRAGMA max_page_count = 1")
        long = {str(number): "x" * 500 for number in range(16)}
        assert ask(site, "Hello.", metadata=long)["status"] == "completed"
        assert stream(site, "Hello.", metadata=long)[-1]["type"] == "response.completed"
    assert caplog.text.count("responses are not kept: the response store cannot be used") == 1, "it is said once"
