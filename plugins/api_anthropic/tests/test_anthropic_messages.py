"""The Messages routes over a toy engine, also through the official client, whose types every answer has to fit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from parallax_api_anthropic.body_models import MessagesRequest
from parallax_api_anthropic.messages import PING, VERSIONS
from parallax_api_anthropic.replies import MessageErrorReply, MessageEvent, MessageReply, TokenCountReply
from parallax_core.contracts.engine import Request
from parallax_core.engine.head import Head
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.server.response import CACHE_BLOCK, SseResponse
from parallax_core.server.response_models import ResponseModel
from tests.unit.server.letters import Site, answer
from tests.unit.server.sdkfields import list_missing
from tests.unit.server.thread import Threaded

ROUTE = "/v1/messages"
EVENT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(MessageEvent)
CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"


def post(site: Site, route: str = ROUTE, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """Send a request, and check the shape of the answer."""
    body = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], **fields}
    response = site.client.post(route, json=body, headers=headers)
    assert response.headers["request-id"] == response.headers["x-request-id"]
    if response.status_code != 200:
        msgspec.json.decode(response.content, type=MessageErrorReply)
    elif route != ROUTE:
        msgspec.json.decode(response.content, type=TokenCountReply)
    elif not fields.get("stream"):
        fits(Message, msgspec.json.decode(response.content, type=MessageReply))
    return response


def ask(site: Site, content: Any = "hello", **fields: Any) -> Any:
    return post(site, messages=[{"role": "user", "content": content}], **{"max_tokens": 5, **fields})


def fits(model: type[BaseModel], reply: ResponseModel) -> None:
    """Check that a reply is valid by the official client's strict types, and has no field that these lack."""
    parsed = model.model_validate_json(msgspec.json.encode(reply), strict=True)
    assert parsed.model_extra in (None, {})
    assert list(list_missing(parsed, msgspec.to_builtins(reply))) == []


def events(response: Any) -> list[Any]:
    """Return the events of a stream, each checked against our schema and the official client's types."""
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        content = json.loads(data.removeprefix("data: "))
        EVENT.decode(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        if content["type"] not in {"ping", "error"}:
            parsed = CLIENT_EVENT.validate_json(json.dumps(content), strict=True)
            assert list(list_missing(parsed, content)) == []
        found.append(content)
    return found


def error_of(response: Any, status: int = 400, kind: str = "invalid_request_error") -> str:
    """Return the message of an error."""
    assert response.status_code == status, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"], body["request_id"]) == (
        "error",
        kind,
        response.headers["request-id"],
    )
    return str(body["error"]["message"])


def test_no_tokens_at_all_compute_the_prompt_alone(site: Site) -> None:
    body = ask(site, max_tokens=0).json()
    assert (body["content"], body["stop_reason"], body["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    found = events(ask(site, max_tokens=0, stream=True))
    assert [each["type"] for each in found if each["type"] != "ping"] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert found[-2]["usage"]["output_tokens"] == 0


def test_answer_has_anthropics_shape(site: Site) -> None:
    body = ask(site).json()
    assert body.pop("id").startswith("msg_")
    usage = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "cache_read_input_tokens": 0,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": None,
        "inference_geo": None,
        "service_tier": "standard",
        "speed": None,
    }
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": answer("hello", 5), "citations": []}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "diagnostics": None,
        "usage": usage,
    }


def test_events_of_a_stream_come_in_the_published_order(site: Site) -> None:
    response = ask(site, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    start, ping, opened, *deltas, closed, end, stop = events(response)
    message = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert (message["usage"]["input_tokens"], ping) == (5, {"type": "ping"})
    assert opened["content_block"] == {"type": "text", "text": "", "citations": []}
    assert "".join(delta["delta"]["text"] for delta in deltas) == answer("hello", 5)
    assert (closed["type"], end["delta"]) == (
        "content_block_stop",
        {"stop_reason": "max_tokens", "stop_sequence": None, "stop_details": None, "container": None},
    )
    assert end["usage"]["output_tokens"] == 5
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence_that_ended_the_answer_is_named(site: Site, stream: bool) -> None:
    whole = answer("hello", 8)
    response = ask(site, max_tokens=8, stop_sequences=["!!!!", whole[3:5]], stream=stream)
    end = events(response)[-2]["delta"] if stream else response.json()
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", whole[3:5])


@pytest.mark.parametrize("stream", [False, True])
def test_answer_without_text_has_no_block(site: Site, stream: bool) -> None:
    site.text.stop_ids = frozenset(range(31))
    response = ask(site, stream=stream)
    if stream:
        assert [event["type"] for event in events(response)] == [
            "message_start",
            "ping",
            "message_delta",
            "message_stop",
        ]
        assert events(response)[-2]["delta"]["stop_reason"] == "end_turn"
    else:
        assert (response.json()["content"], response.json()["stop_reason"]) == ([], "end_turn")


def test_answer_that_fills_the_context_says_so(site: Site) -> None:
    body = ask(site, max_tokens=32_000).json()
    assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("model_context_window_exceeded", 395)


def test_system_prompt_comes_first_as_text_or_blocks(site: Site) -> None:
    text = ask(site, system="be kind").json()["content"]
    blocks = [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert text[0]["text"] == answer("be kindhello", 5)
    joined = ask(site, system=[*blocks, {"type": "text", "text": "kind"}]).json()["content"]
    assert joined[0]["text"] == answer("be\nkindhello", 5)


HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
MINUTES = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "hello"}
RESULT = {"type": "tool_result", "tool_use_id": "a"}
USE = {"type": "tool_use", "id": "a", "name": "find", "input": {}}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"system": "be kind"}, None),
        ({"cache_control": MINUTES["cache_control"]}, 300),
        ({"system": [{**TEXT, **HOUR}]}, 3600),
        ({"system": [{**TEXT, **HOUR}], **MINUTES}, 3600),
        ({"tools": [{"name": "find", "input_schema": {"type": "object"}, **HOUR}]}, 3600),
        ({"messages": [{"role": "user", "content": [TEXT, {**TEXT, **MINUTES}]}]}, 300),
        ({"messages": [{"role": "assistant", "content": [{**USE, **HOUR}]}]}, 3600),
        ({"messages": [{"role": "user", "content": [{**RESULT, **HOUR}]}]}, 3600),
        ({"messages": [{"role": "user", "content": [{**RESULT, "content": [{**TEXT, **HOUR}]}]}]}, 3600),
    ],
)
def test_longest_time_of_the_marks_counts(fields: dict[str, Any], seconds: float | None) -> None:
    whole = {"model": "toy", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}], **fields}
    assert MessagesRequest.model_validate(whole).pin_s == seconds


@pytest.mark.parametrize(
    ("mark", "name"), [(MINUTES, "ephemeral_5m_input_tokens"), (HOUR, "ephemeral_1h_input_tokens")]
)
def test_marked_prompt_is_pinned_and_told(site: Site, mark: dict[str, Any], name: str) -> None:
    text, most = "hello " * 20, 120
    for cached in (0, 96):
        usage = ask(site, [{**TEXT, "text": text, **mark}]).json()["usage"]
        assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (cached, most - cached)
        assert usage["input_tokens"] == 0
        assert usage["cache_creation"][name] == most - cached
        assert sum(usage["cache_creation"].values()) == most - cached
    [*_, end, _] = events(ask(site, [{**TEXT, "text": text, **mark}], stream=True))
    assert (end["usage"]["input_tokens"], end["usage"]["cache_creation_input_tokens"]) == (0, most - 96)


def test_pins_of_a_key_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    owners, accept = set[bytes](), Head.accept

    def note(head: Head, request: Request, *rest: Any) -> None:
        assert request.pin is not None
        owners.add(request.pin.owner)
        accept(head, request, *rest)

    monkeypatch.setattr(Head, "accept", note)
    with Site(ServerOptions(keys=ApiKeys({"a": "user", "b": "user"}))) as site:
        for key in ("a", "b"):
            headers = {"X-Api-Key": key}
            body = post(site, headers=headers, max_tokens=2, messages=[{"role": "user", "content": [{**TEXT, **HOUR}]}])
            assert body.status_code == 200
    assert len(owners) == 2


def test_neighbours_of_one_role_are_one_turn(site: Site) -> None:
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("user", [{"type": "text", "text": "d"}] * 2)]
    body = post(site, max_tokens=5, messages=[{"role": role, "content": content} for role, content in turns]).json()
    assert body["content"][0]["text"] == answer("a\nbcd\nd", 5)


@pytest.mark.parametrize("as_blocks", [False, True])
def test_billing_line_is_no_part_of_the_prompt(site: Site, as_blocks: bool) -> None:
    lines = [BILLING.format("36ee5"), "be kind"]
    system = [{"type": "text", "text": line} for line in lines] if as_blocks else "\n".join(lines)
    assert ask(site, system=system).json()["content"][0]["text"] == answer("be kindhello", 5)


def test_conversation_with_a_changing_billing_line_comes_from_the_cache(site: Site) -> None:
    system, messages = "you are a fox, and you are kind. " * 6, [{"role": "user", "content": "hello"}]
    for number in range(4):
        blocks = [{"type": "text", "text": text} for text in (BILLING.format(number), system)]
        body = post(site, max_tokens=5, system=blocks, messages=messages).json()
        usage = body["usage"]
        assert usage["cache_read_input_tokens"] >= (len(system) if number else 0) // CACHE_BLOCK * CACHE_BLOCK
        assert usage["input_tokens"] <= CACHE_BLOCK + len("more") if number else usage["cache_read_input_tokens"] == 0
        messages += [{"role": "assistant", "content": body["content"]}, {"role": "user", "content": "more"}]


def test_billing_line_is_kept_on_request_and_defeats_the_cache() -> None:
    with Site(ServerOptions(keeps_billing_line=True)) as site:
        for number in range(2):
            system = f"{BILLING.format(number)}\nbe kind"
            body = ask(site, system=system).json()
            assert body["content"][0]["text"] == answer(f"{system}hello", 5)
            assert body["usage"]["cache_read_input_tokens"] < len(system) // 2 + len(BILLING)


def test_tokens_of_a_prompt_can_be_counted(site: Site) -> None:
    assert post(site, f"{ROUTE}/count_tokens", system="be kind").json() == {"input_tokens": len("be kindhello")}
    message = error_of(post(site, f"{ROUTE}/count_tokens", max_tokens=5))
    assert message == "unknown field 'max_tokens'"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "'max_tokens' must be an integer"),
        ({"max_tokens": -1}, "'max_tokens' must be at least 0"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'tools.0.type'"),
        ({"tool_choice": {"type": "all"}}, "'tool_choice.type'"),
        ({"thinking": {"type": "enabled"}}, "'thinking.budget_tokens'"),
        ({"logprobs": True}, "unknown field 'logprobs'"),
        ({"metadata": {"name": "x"}}, "unknown field 'metadata.name'"),
        ({"system": [{"type": "text", "text": "a", "more": 1}]}, "unknown field 'system.0.more'"),
        ({"stop_sequences": [5]}, "'stop_sequences.0'"),
        ({"temperature": 3}, "'temperature'"),
        ({"messages": []}, "'messages'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "'messages.0.role'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "'messages.0.content.0': blocks are supported",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]}, "'messages.0.content'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]}, "'messages.0.content.0.t"),
    ],
)
def test_unsupported_or_invalid_field_is_named(site: Site, fields: dict[str, Any], message: str) -> None:
    assert message in error_of(post(site, **{"max_tokens": 5, **fields}))


def test_max_tokens_is_required(site: Site) -> None:
    assert error_of(post(site)) == "'max_tokens' is missing"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}, "service_tier": "auto", "metadata": {"user_id": "a"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"cache_control": {"type": "ephemeral"}, "top_p": 0.9, "top_k": 40, "temperature": 1.0, "container": None},
        {"container": "", "inference_geo": "", "metadata": {"user_id": ""}, "stop_sequences": [""], "model": ""},
        {"tool_choice": {"type": "auto", "name": ""}, "system": "", "top_p": 0},
    ],
)
def test_fields_that_ask_for_nothing_more_are_accepted(site: Site, fields: dict[str, Any]) -> None:
    assert ask(site, **fields).status_code == 200


def test_empty_ids_of_calls_and_results_are_accepted(site: Site) -> None:
    call = {"type": "tool_use", "id": "", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "", "content": "ok"}
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}]
    assert post(site, max_tokens=2, messages=[*turns, {"role": "user", "content": [result]}]).status_code == 200


def test_effort_is_that_of_the_template(site: Site) -> None:
    for effort, shown in (("low", "low"), ("max", "xhigh")):
        body = ask(site, output_config={"effort": effort}).json()
        assert body["content"][0]["text"] == answer(f"hello{shown}", 5)


def test_version_is_checked(site: Site) -> None:
    for version in VERSIONS:
        assert post(site, max_tokens=5, headers={"anthropic-version": version}).status_code == 200
    message = error_of(post(site, max_tokens=5, headers={"anthropic-version": "2022-01-01"}))
    assert message == "'anthropic-version' is '2022-01-01', and this server knows 2023-06-01 and 2026-10-21"


def test_error_in_a_stream_is_its_last_event(site: Site) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("no more")

    site.stage.before_step = fail
    *_, last = events(ask(site, stream=True))
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_long_prompt_is_refused_with_its_length(site: Site) -> None:
    assert "the prompt has 500 tokens" in error_of(ask(site, "a" * 500))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Threaded]:
    with Threaded(ServerOptions(keys=ApiKeys({"secret": "user", "m": "metrics"}), max_per_minute=200)) as server:
        yield server


@pytest.fixture
def client(guarded: Threaded) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=guarded.url, api_key="secret", max_retries=0) as client:
        yield client


HELLO: Any = [{"role": "user", "content": "hello"}]


def test_official_client_gets_its_answer(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="toy", max_tokens=5, messages=HELLO)
    assert [block.text for block in message.content if block.type == "text"] == [answer("hello", 5)]
    assert message._request_id


def test_official_client_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="toy", max_tokens=5, messages=HELLO, system="be kind") as stream:
        assert "".join(stream.text_stream) == answer("be kindhello", 5)
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 5)
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == len("be kindhello")


def test_official_client_uses_the_beta_route(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(model="toy", max_tokens=5, messages=HELLO, betas=["some-beta"])
    assert message.usage.output_tokens == 5


def test_official_client_counts_tokens(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model="toy", messages=HELLO).input_tokens == 5


def test_official_client_raises_its_own_errors(client: anthropic.Anthropic, guarded: Threaded) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="claude", max_tokens=5, messages=HELLO)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="unknown field 'magic'"):
        client.messages.create(model="toy", max_tokens=5, messages=HELLO, extra_body={"magic": 1})
    with pytest.raises(anthropic.AuthenticationError) as wrong:
        client.with_options(api_key="wrong").messages.create(model="toy", max_tokens=5, messages=HELLO)
    assert wrong.value.type == "authentication_error"
    with pytest.raises(anthropic.PermissionDeniedError) as forbidden:
        client.with_options(api_key="m").messages.create(model="toy", max_tokens=5, messages=HELLO)
    assert forbidden.value.type == "permission_error"


def test_key_is_read_from_either_header() -> None:
    with Site(ServerOptions(keys=ApiKeys({"secret": "user"}))) as site:
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            assert post(site, max_tokens=1, headers=headers).status_code == 200
        both = {"x-api-key": "secret", "Authorization": "Bearer wrong"}
        error_of(post(site, max_tokens=1, headers=both), 401, "authentication_error")
        error_of(post(site, max_tokens=1), 401, "authentication_error")


def test_official_client_waits_for_a_busy_server() -> None:
    with Threaded(ServerOptions(max_per_minute=1)) as server:
        url = server.url
        with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
            client.messages.create(model="toy", max_tokens=1, messages=HELLO)
            with pytest.raises(anthropic.RateLimitError) as busy:
                client.messages.create(model="toy", max_tokens=1, messages=HELLO)
    assert busy.value.type == "rate_limit_error"
    assert int(busy.value.response.headers["retry-after"]) > 0


def test_server_that_stops_is_overloaded(site: Site) -> None:
    site.drain.is_closed = True
    response = ask(site)
    error_of(response, 529, "overloaded_error")
    assert response.headers["retry-after"] == "5"


def test_stream_that_waits_is_kept_alive_by_pings(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SseResponse, "silence_s", 0.05)
    site.stage.before_step = lambda batch: time.sleep(0.2)
    assert ask(site, stream=True, max_tokens=2).content.count(PING) >= 2
