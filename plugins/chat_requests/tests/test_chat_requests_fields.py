"""Every field of both routes that generate: whatever it is told is honoured or refused by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_api_openai.completion_request import NEUTRAL_COMPLETION, CompletionRequest
from parallax_chat_requests.request_models import NEUTRAL_CHAT, ChatRequest
from parallax_core.api import Request
from parallax_core.base.ids import RequestId
from parallax_core.node.pipeline.stream import QueueStream
from tests.unit.server.letters import ALPHABET, Site, error_of
from tests.unit.server.trials import try_few
from tests.unit.server.values import CHAT, COMPLETION, Values

ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
REQUIRED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
}
FIELDS = [(route, name) for route, fields in ROUTES.items() for name in fields]
USUAL = {"model": "toy", "max_tokens": 8, "seed": 5, "temperature": 1}
LABELS = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
UNUSED_HERE = {"parallel_tool_calls", "max_reasoning_tokens"}
"""Fields without effect on the toy, which does not reason or call tools; see `test_tools`, `test_reasoning_limit`."""
NEW = re.compile(r'"(id|created|cached_tokens)":("[^"]*"|\d+)')
"""What is different in every answer: asking again finds more in the cache, too."""
STATUSES = {200, 400, 404, 408, 429}


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with Site() as site:
        site.text.stop_ids = frozenset({ALPHABET.index(letter) for letter in "qxz"})
        yield site


def make_body(route: str, values: Values, name: str, value: Any) -> dict[str, Any]:
    """Return a request with one field set, and what it needs beside it."""
    body = {**USUAL, **REQUIRED[route], **values.beside, name: value}
    if name == "max_completion_tokens":
        del body["max_tokens"]
    return body


def test_every_field_has_values_to_be_tested_with() -> None:
    assert CHAT.keys() == ChatRequest.model_fields.keys()
    assert COMPLETION.keys() == CompletionRequest.model_fields.keys()


@pytest.mark.parametrize(("route", "name"), FIELDS)
def test_good_value_is_taken(server: Site, route: str, name: str) -> None:
    values = ROUTES[route][name]

    @try_few(4)
    @given(values.good)
    def check(value: Any) -> None:
        response = server.post(route, **make_body(route, values, name, value))
        assert response.status_code in ({200, 408} if name == "timeout" else {200}), (value, response.text)

    check()


@pytest.mark.parametrize(("route", "name"), FIELDS)
def test_bad_value_is_refused_by_name(server: Site, route: str, name: str) -> None:
    values = ROUTES[route][name]

    @try_few(8)
    @given(values.bad)
    def check(value: Any) -> None:
        error = error_of(server.post(route, **make_body(route, values, name, value)))
        assert (error["param"] or "").partition(".")[0] == name, (value, error)

    check()


@pytest.mark.parametrize("route", ROUTES)
def test_no_mixture_of_fields_is_a_fault_of_the_server(server: Site, route: str) -> None:
    fields = ROUTES[route]
    neutral = NEUTRAL_CHAT if route == "/v1/chat/completions" else NEUTRAL_COMPLETION
    optional: dict[str, Any] = {name: values.good | values.bad for name, values in fields.items()}
    optional |= {name: st.sampled_from([None, *known, "other"]) for name, known in neutral.items()}
    optional |= {name: values.good for name, values in fields.items() if name not in LABELS}  # or hardly any is taken
    required = {"model": st.just("toy"), **{name: fields[name].good for name in REQUIRED[route]}}
    for name in required:
        optional.pop(name)

    @try_few(30)
    @given(st.fixed_dictionaries(required, optional=optional))
    def check(body: dict[str, Any]) -> None:
        response = server.post(route, **body)
        assert response.status_code in STATUSES, response.text
        if response.status_code == 400:
            assert error_of(response)["param"].partition(".")[0] in body

    check()


@pytest.mark.parametrize(("route", "name"), FIELDS)
def test_field_makes_the_difference_it_should(
    server: Site, monkeypatch: pytest.MonkeyPatch, route: str, name: str
) -> None:
    values = ROUTES[route][name]
    submit, asked = server.engine.submit, list[Request]()

    def note(request: Request) -> QueueStream:
        asked.append(request)
        return submit(request)

    monkeypatch.setattr(server.engine, "submit", note)

    def observe(value: Any) -> tuple[object, ...]:
        """Return what the engine is asked and what is answered, without what is new every time."""
        asked.clear()
        response = server.post(route, **make_body(route, values, name, value))
        text = NEW.sub("", response.text)
        return response.status_code, tuple(replace(each, id=RequestId(""), waited_s=0) for each in asked), text

    one, other = values.pair
    assert observe(one) == observe(one)
    assert (observe(one) == observe(other)) == (name in LABELS | UNUSED_HERE)
