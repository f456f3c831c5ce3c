from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from parallax_chat_requests.request_models import ChatRequest
from tests.unit.server.letters import Site, error_of


def test_booleans_are_no_numbers(site: Site) -> None:
    assert error_of(site.ask(n=True))["param"] == "n"
    assert error_of(site.ask(logprobs=1))["param"] == "logprobs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"colour": "red"}, "colour"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"31": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias.01"),
        ({"stop_token_ids": [31]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"priority": 0.5}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"chat_template_kwargs": {"a": ["\ud800"]}}, "chat_template_kwargs"),
        ({"top_p": math.nan}, "top_p"),
        ({"stop": 3}, "stop"),
        ({"stop": ["x", 1]}, "stop.1"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"user": "\ud800"}, "user"),
        ({"stop": "\ud800"}, "stop"),
        ({"messages": [{"role": "user", "content": "a\ud800b"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages.0.content.0.text",
        ),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "nick": "me"}]}, "messages.0.nick"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"max_tokens": 500}, "max_tokens"),
        ({"max_completion_tokens": 500}, "max_completion_tokens"),
    ],
)
def test_wrong_value_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "x"}], **fields}
    error = error_of(site.post(**body))
    assert error["param"] == param
    assert param in error["message"] or "tokens" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 1, "max_completion_tokens": 1}, {"stream_options": {"include_usage": True}}, {"top_logprobs": 1}],
)
def test_fields_that_do_not_go_together_are_refused(site: Site, fields: dict[str, Any]) -> None:
    error = error_of(site.ask(**fields))
    assert error["param"] == next(iter(fields))
    assert str(error["param"]) in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b'"x"', b'{"model": NaN}'])
def test_body_that_is_no_request_is_refused(site: Site, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    error_of(site.client.post("/v1/chat/completions", content=body, headers=headers))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "toy", "temperature": 0, "temperature": 2}', "temperature"),
        (b'{"model": "toy", "messages": [{"role": "user", "content": "a", "content": "b"}]}', "content"),
        (b'{"model": "toy", "seed": ' + b"9" * 5000 + b"}", None),
    ],
)
def test_body_whose_meaning_is_open_is_refused(site: Site, body: bytes, param: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    for route in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        error = error_of(site.client.post(route, content=body, headers=headers))
        assert error["param"] == param
        assert "twice" in error["message"] or "digits" in error["message"]


MANY = {f"k{number}": 0 for number in range(2000)}


PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (MANY, "k0"),
        ({"messages": [{"role": "user", "content": "x", **MANY}]}, "messages.0.k0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}] * 2000}]}, "messages.0.content.0.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **MANY}]}]},
            "messages.0.content.0.k0",
        ),
        ({"metadata": MANY}, "metadata"),
        ({"logit_bias": MANY}, "logit_bias"),
        ({"chat_template_kwargs": MANY}, "chat_template_kwargs"),
        ({"stream": True, "stream_options": MANY}, "stream_options.k0"),
        ({"stop": [1] * 2000}, "stop"),
        ({"stop_token_ids": ["x"] * 2000}, "stop_token_ids"),
    ],
)
def test_thousand_faults_are_one_error(site: Site, fields: dict[str, Any], param: str) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(body)
    assert caught.value.error_count() < 100  # each takes its time, in which nobody else is answered
    assert error_of(site.post(**body))["param"] == param


def test_what_a_client_sent_is_quoted_without_harm(site: Site) -> None:
    error_of(site.ask(**{"\ud800": 1}))
    assert len(error_of(site.ask(max_tokens=10**900))["message"]) < 1100
    error_of(site.post(model="\ud800", messages=[{"role": "user", "content": "x"}]))


def test_body_of_another_kind_is_named_so(site: Site) -> None:
    headers = {"Content-Type": "text/plain"}
    response = site.client.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert "application/json" in error_of(response)["message"]
    response = site.client.post("/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"})
    error = error_of(response)
    assert "not valid JSON" in error["message"]
    assert error["param"] is None
