"""What OpenAI's reference says of `/v1/responses`, as cases for any server.

Each case is a function of a `Site` that raises AssertionError where the server differs. They are written from the
published reference; every response and event is read by the official client's types in strict mode. The model may
answer anything: what must have a form is forced by `tool_choice` or a schema.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import jsonschema
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

OK, BAD_REQUEST, NOT_FOUND = 200, 400, 404
PATIENCE_S = 60.0
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "name": "look_up", "description": "Looks up.", "parameters": SCHEMA, "strict": True}
OTHER = {**FUNCTION, "name": "look_away"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Applies a patch."}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3,9}"}
NAMESPACE = {"type": "namespace", "name": "files", "description": "Files.", "tools": [FUNCTION]}
FIELDS = [
    "id",
    "object",
    "created_at",
    "status",
    "background",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "model",
    "output",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "service_tier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "metadata",
]
"""What every response has, null or not."""
CASES: dict[str, Callable[[Site], None]] = {}


@dataclass(frozen=True)
class Site:
    """A server, and the name of the model it serves."""

    http: httpx2.Client
    model: str

    def post(self, **fields: Any) -> httpx2.Response:
        """Return the answer to a request, of whatever status."""
        body = {"model": self.model, "input": "Say hello.", "max_output_tokens": 16, **fields}
        return self.http.post("/v1/responses", json=body)

    def ask(self, **fields: Any) -> dict[str, Any]:
        """Return a response, checked."""
        return read(self.post(**fields))

    def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of a response, each checked."""
        return read_events(self.post(stream=True, **fields))

    def get(self, path: str, **query: Any) -> httpx2.Response:
        """Return what is kept at a path below `/v1/responses`."""
        return self.http.get(f"/v1/responses/{path}", params=query)

    def wait(self, identity: str) -> dict[str, Any]:
        """Return a response of the background once it has ended."""
        until = time.monotonic() + PATIENCE_S
        while (found := read(self.get(identity)))["status"] in {"queued", "in_progress"}:
            assert time.monotonic() < until, found["status"]
            time.sleep(0.1)
        return found


def read(answer: httpx2.Response) -> dict[str, Any]:
    """Return a response, read in strict mode."""
    assert answer.status_code == OK, f"{answer.status_code}: {answer.text[:200]}"
    Response.model_validate_json(answer.text, strict=True)
    found: dict[str, Any] = answer.json()
    return found


def read_events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, read in strict mode, each named as its type."""
    assert answer.status_code == OK, f"{answer.status_code}: {answer.text[:200]}"
    found = []
    for event in re.split(r"\r?\n\r?\n", answer.text.strip()):
        lines = [line for line in event.splitlines() if not line.startswith(":")]
        if not lines or lines == ["data: [DONE]"]:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        EVENT.validate_json(fields["data"], strict=True)
        found.append(json.loads(fields["data"]))
        assert fields["event"] == found[-1]["type"]
    return found


def refuse(answer: httpx2.Response, status: int, field: str = "") -> None:
    """Check that an answer is an error of OpenAI's form, which names a field."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text[:200]}"
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error), sorted(error)
    assert field in (error["param"] or "") + error["message"], error


def text_of(body: dict[str, Any]) -> str:
    """Return the text of the messages of a response."""
    messages = [item for item in body["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def only(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the one item of a kind."""
    [found] = [item for item in body["output"] if item["type"] == kind]
    return dict(found)


def case(name: str) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Register a case by what must be true."""

    def register(check: Callable[[Site], None]) -> Callable[[Site], None]:
        CASES[name] = check
        return check

    return register


@case("a response has every field of the reference")
def _(site: Site) -> None:
    body = site.ask()
    assert set(FIELDS) <= set(body), sorted(set(FIELDS) - set(body))
    assert body["object"] == "response"
    assert body["id"].startswith("resp_")


@case("a text has annotations, and its message an id and a status")
def _(site: Site) -> None:
    message = only(site.ask(), "message")
    assert message["role"] == "assistant"
    assert message["status"] in {"completed", "incomplete"}
    assert message["id"].startswith("msg_")
    assert message["content"][0]["annotations"] == []


@case("usage adds up")
def _(site: Site) -> None:
    usage = site.ask()["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > usage["output_tokens"] > 0
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"]["reasoning_tokens"] == 0


@case("fields of the request are in the response")
def _(site: Site) -> None:
    fields = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.75}
    body = site.ask(**fields)
    assert {name: body[name] for name in fields} == fields
    assert body["max_output_tokens"] == 16


@case("prompt_cache_key, safety_identifier and user are accepted")
def _(site: Site) -> None:
    site.ask(prompt_cache_key="k", safety_identifier="s", user="u")


@case("instructions are a part of the prompt")
def _(site: Site) -> None:
    long = site.ask(instructions="Be brief, and very kind. " * 20)
    assert long["usage"]["input_tokens"] > site.ask()["usage"]["input_tokens"] + 60


@case("an answer that is cut is incomplete, with its reason")
def _(site: Site) -> None:
    body = site.ask(input="Count from 1 to 1000.", max_output_tokens=16)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


@case("a stream that is cut ends with response.incomplete")
def _(site: Site) -> None:
    assert site.stream(input="Count from 1 to 1000.")[-1]["type"] == "response.incomplete"


@case("the input may be messages of all roles, with texts or parts")
def _(site: Site) -> None:
    parts = [{"type": "input_text", "text": "Hello."}]
    answered = [{"type": "output_text", "text": "Hi.", "annotations": []}]
    site.ask(
        input=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts},
            {"type": "message", "role": "assistant", "content": answered, "id": "msg_1", "status": "completed"},
            {"role": "user", "content": "Again."},
        ]
    )


@case("the developer role is accepted")
def _(site: Site) -> None:
    site.ask(input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi."}])


@case("the output of a response is an input")
def _(site: Site) -> None:
    first = site.ask()
    site.ask(input=[{"role": "user", "content": "Hi."}, *first["output"], {"role": "user", "content": "Again."}])


@case("events of a text come in the published order")
def _(site: Site) -> None:
    kinds = [event["type"].removeprefix("response.") for event in site.stream()]
    kinds = [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]]
    assert kinds[:-1] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert kinds[-1] in {"completed", "incomplete"}


@case("sequence numbers count from 0 without a gap")
def _(site: Site) -> None:
    events = site.stream()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@case("the deltas are the text of each later event")
def _(site: Site) -> None:
    events = site.stream()
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    [done] = [event["text"] for event in events if event["type"] == "response.output_text.done"]
    [part] = [event["part"]["text"] for event in events if event["type"] == "response.content_part.done"]
    assert text == done == part == text_of(events[-1]["response"]) != ""


@case("ids are the same from the first event to the final response")
def _(site: Site) -> None:
    events = site.stream()
    final = events[-1]["response"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}
    named = {event["item_id"] for event in events if "item_id" in event}
    named |= {event["item"]["id"] for event in events if "item" in event}
    assert named == {item["id"] for item in final["output"]}


@case("a response can be retrieved, as it was answered")
def _(site: Site) -> None:
    body = site.ask()
    assert read(site.get(body["id"])) == body


@case("the last event of a stream is what can be retrieved")
def _(site: Site) -> None:
    final = site.stream()[-1]["response"]
    assert read(site.get(final["id"])) == final


@case("store=false keeps nothing")
def _(site: Site) -> None:
    refuse(site.get(site.ask(store=False)["id"]), NOT_FOUND)


@case("a deleted response is gone")
def _(site: Site) -> None:
    identity = site.ask()["id"]
    deleted = site.http.delete(f"/v1/responses/{identity}")
    assert deleted.status_code == OK
    assert deleted.json() == {"id": identity, "object": "response", "deleted": True}
    refuse(site.get(identity), NOT_FOUND)


@case("the input of a response is listed")
def _(site: Site) -> None:
    body = site.ask(input=[{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}])
    answer = site.get(f"{body['id']}/input_items", order="asc")
    assert answer.status_code == OK, answer.status_code
    listed = answer.json()
    assert listed["object"] == "list"
    assert [item["content"][0]["text"] for item in listed["data"]] == ["One.", "Two."]
    assert listed["has_more"] is False


@case("previous_response_id continues a conversation")
def _(site: Site) -> None:
    first = site.ask(input="Remember the word fox. " * 10)
    second = site.ask(input="Which word?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


@case("an unknown previous_response_id is an error that names it")
def _(site: Site) -> None:
    answer = site.post(previous_response_id="resp_0123456789abcdef0123456789abcdef")
    refuse(answer, answer.status_code if answer.status_code in {BAD_REQUEST, NOT_FOUND} else NOT_FOUND, "resp")


@case("an unknown response is a 404")
def _(site: Site) -> None:
    refuse(site.get("resp_0123456789abcdef0123456789abcdef"), NOT_FOUND)


@case("a response in the background ends by itself")
def _(site: Site) -> None:
    begun = site.ask(background=True)
    assert begun["status"] in {"queued", "in_progress"}
    assert begun["background"] is True
    assert site.wait(begun["id"])["status"] in {"completed", "incomplete"}


@case("a response in the background can be cancelled")
def _(site: Site) -> None:
    begun = site.ask(background=True, input="Count from 1 to 1000.", max_output_tokens=1000)
    assert read(site.http.post(f"/v1/responses/{begun['id']}/cancel"))["status"] == "cancelled"


@case("a response in the foreground cannot be cancelled")
def _(site: Site) -> None:
    refuse(site.http.post(f"/v1/responses/{site.ask()['id']}/cancel"), BAD_REQUEST)


@case("a stream of the background can be resumed after any event")
def _(site: Site) -> None:
    events = site.stream(background=True)
    identity = events[0]["response"]["id"]
    assert read_events(site.get(identity, stream="true", starting_after=2)) == events[3:]


@case("a forced function is called, with arguments that match its schema")
def _(site: Site) -> None:
    body = site.ask(tools=[FUNCTION], tool_choice={"type": "function", "name": "look_up"}, max_output_tokens=200)
    call = only(body, "function_call")
    assert call["name"] == "look_up"
    assert call["call_id"]
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)


@case("a required call is streamed, and its deltas are its arguments")
def _(site: Site) -> None:
    events = site.stream(tools=[FUNCTION, OTHER], tool_choice="required", max_output_tokens=200)
    kind = "response.function_call_arguments"
    deltas = "".join(event["delta"] for event in events if event["type"] == f"{kind}.delta")
    dones = [event for event in events if event["type"] == f"{kind}.done"]
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    assert len(calls) > 0
    assert deltas == "".join(done["arguments"] for done in dones) == "".join(call["arguments"] for call in calls)
    assert {done["item_id"] for done in dones} == {call["id"] for call in calls}


@case("the result of a function is sent back")
def _(site: Site) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": '{"city": "Rome"}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "It is warm."}
    site.ask(input=[{"role": "user", "content": "Rome?"}, call, result], tools=[FUNCTION])


@case("allowed_tools restricts the tools")
def _(site: Site) -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look_away"}]}
    body = site.ask(tools=[FUNCTION, OTHER], tool_choice=allowed, max_output_tokens=200)
    calls = [item["name"] for item in body["output"] if item["type"] == "function_call"]
    assert set(calls) == {"look_away"}


@case("a forced custom tool is called with text")
def _(site: Site) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    call = only(site.ask(tools=[{**PATCH, "format": GRAMMAR}], tool_choice=choice), "custom_tool_call")
    assert call["name"] == "apply_patch"
    assert isinstance(call["input"], str)


@case("the input of a forced custom tool follows its grammar")
def _(site: Site) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    body = site.ask(tools=[{**PATCH, "format": GRAMMAR}], tool_choice=choice, max_output_tokens=100)
    assert re.fullmatch("[ab]{3,9}", only(body, "custom_tool_call")["input"])


@case("the result of a custom tool is sent back")
def _(site: Site) -> None:
    call = {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": "abc"}
    result = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    site.ask(input=[{"role": "user", "content": "Patch."}, call, result], tools=[PATCH])


@case("tools of a namespace are accepted")
def _(site: Site) -> None:
    site.ask(tools=[NAMESPACE])


@case("a text follows its schema")
def _(site: Site) -> None:
    form = {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}
    body = site.ask(text={"format": form}, max_output_tokens=200)
    jsonschema.validate(json.loads(text_of(body)), SCHEMA)
    assert body["text"]["format"] == {**form, "description": None} or body["text"]["format"] == form


@case("json_object gives an object")
def _(site: Site) -> None:
    body = site.ask(text={"format": {"type": "json_object"}}, max_output_tokens=400, temperature=0)
    assert body["status"] == "incomplete" or isinstance(json.loads(text_of(body)), dict)


@case("log-probabilities are given on request")
def _(site: Site) -> None:
    body = site.ask(include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = only(body, "message")["content"][0]["logprobs"]
    assert logprobs
    assert all(len(each["top_logprobs"]) == 2 for each in logprobs)


@case("log-probabilities are streamed on request")
def _(site: Site) -> None:
    events = site.stream(include=["message.output_text.logprobs"], top_logprobs=1)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(delta["logprobs"] for delta in deltas if delta["delta"])


@case("reasoning.encrypted_content may be included")
def _(site: Site) -> None:
    site.ask(include=["reasoning.encrypted_content"], store=False)


@case("an unknown field is an error that names it")
def _(site: Site) -> None:
    refuse(site.post(temprature=1), BAD_REQUEST, "temprature")


@case("a value out of range is an error that names its field")
def _(site: Site) -> None:
    refuse(site.post(temperature=9), BAD_REQUEST, "temperature")


@case("a value of a wrong type is an error that names its field")
def _(site: Site) -> None:
    refuse(site.post(input=5), BAD_REQUEST, "input")


@case("an item of an unknown type is an error")
def _(site: Site) -> None:
    refuse(site.post(input=[{"type": "telepathy", "text": "hi"}]), BAD_REQUEST, "input")


@case("max_output_tokens of 0 is an error that names it")
def _(site: Site) -> None:
    refuse(site.post(max_output_tokens=0), BAD_REQUEST, "max_output_tokens")


@case("an unknown model is a 404")
def _(site: Site) -> None:
    refuse(site.post(model="no-such-model"), NOT_FOUND, "model")


@case("a function that is not among the tools cannot be forced")
def _(site: Site) -> None:
    refuse(site.post(tools=[FUNCTION], tool_choice={"type": "function", "name": "other"}), BAD_REQUEST, "tool_choice")
