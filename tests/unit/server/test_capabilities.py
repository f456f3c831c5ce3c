"""What a server says of its models agrees with what it refuses, in every API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tokenizers import Tokenizer, normalizers

from parallax_core.models.grammars import NoLibrary, find_library
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site
from tests.unit.server.scripted import HERMES, TEMPLATE, ScriptedSite, only_reasoning
from tests.unit.server.test_reasoning_limit import SPEC, PipeParser

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ eos_token }}{% endfor %}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
SAY: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
USER = [{"role": "user", "content": "hi"}]
ANTHROPIC = {"Anthropic-Version": "2023-06-01"}
IMAGE = "data:image/png;base64,AAAA"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}
ASKED: dict[str, dict[str, dict[str, Any]]] = {
    "tools": {
        "/v1/chat/completions": {"tools": [{"type": "function", "function": {"name": "say", "parameters": SAY}}]},
        "/v1/responses": {"tools": [{"type": "function", "name": "say", "parameters": SAY, "strict": False}]},
        "/v1/messages": {"tools": [{"name": "say", "input_schema": SAY}]},
    },
    "structured_output": {
        "/v1/chat/completions": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        },
        "/v1/responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    },
    "vision": {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]
        },
        "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]},
        "/v1/messages": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
                    ],
                }
            ]
        },
    },
}
"""By capability, the fields of a request that needs it."""


def list_capabilities(site: ScriptedSite) -> set[str]:
    return set(site.http.get("/v1/models").json()["data"][0]["capabilities"])


def ask(site: ScriptedSite, route: str, **fields: Any) -> int:
    site.engine.scripts.append('{"a": true}')
    answer = site.http.post(route, json={"model": "toy", **ROUTES[route], **fields})
    if answer.status_code != 200:
        site.engine.scripts.pop()
    assert answer.status_code in {200, 400}, answer.text
    return int(answer.status_code)


def leave_as_it_is(site: ScriptedSite) -> None:
    del site


def take_grammars_from_engine(site: ScriptedSite) -> None:
    honoured = site.engine.info.honours - {"grammar"}
    site.engine.info = dataclasses.replace(site.engine.info, honours=honoured)


def take_grammars_from_tokenizer(site: ScriptedSite) -> None:
    tokenizer = Tokenizer.from_file(str(site.folder / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace("t", "d")
    tokenizer.save(str(site.folder / "other.json"))
    other = site.folder / "other.json"
    site.text.grammars = find_library().open_model(other, site.text.vocab_size, site.text.stop_ids)


def take_library(site: ScriptedSite) -> None:
    site.text.grammars = NoLibrary()


NO_LISTS = ServerOptions(lists_calls=False)
ALL = {"completion", "chat", "tools", "structured_output", "reasoning"}


@pytest.mark.parametrize(
    ("options", "change", "able"),
    [
        ({}, leave_as_it_is, ALL),
        ({}, take_grammars_from_engine, ALL - {"structured_output"}),
        ({}, take_grammars_from_tokenizer, ALL - {"structured_output"}),
        ({}, take_library, ALL - {"structured_output"}),
        ({"spec": None}, leave_as_it_is, ALL),
        ({"spec": None, "options": NO_LISTS}, leave_as_it_is, ALL - {"tools"}),
        ({"spec": None}, take_grammars_from_engine, ALL - {"tools", "structured_output"}),
        (
            {"spec": None, "template": PLAIN},
            take_grammars_from_tokenizer,
            ALL - {"tools", "structured_output", "reasoning"},
        ),
        ({"spec": only_reasoning(), "options": NO_LISTS}, leave_as_it_is, ALL - {"tools"}),
        ({"template": PLAIN + "<think>", "options": NO_LISTS}, leave_as_it_is, ALL - {"tools"}),
        ({"template": PLAIN}, leave_as_it_is, ALL - {"reasoning"}),
        ({"spec": HERMES, "template": TEMPLATE.replace("enable_thinking", "x")}, leave_as_it_is, ALL),
    ],
)
def test_model_says_what_requests_may_ask_for(
    tmp_path: Path, options: dict[str, Any], change: Callable[[ScriptedSite], None], able: set[str]
) -> None:
    with ScriptedSite(tmp_path, **options) as site:
        change(site)
        assert list_capabilities(site) == able
        for name, routes in ASKED.items():
            for route, fields in routes.items():
                assert (ask(site, route, **fields) == 200) == (name in able), (name, route)
        check_messages_form(site, able)


def check_messages_form(site: ScriptedSite, able: set[str]) -> None:
    client = anthropic.Anthropic(
        base_url="http://testserver", api_key="x", http_client=site.http, _strict_response_validation=True
    )
    [model] = client.models.list().data
    assert client.models.retrieve("toy") == model
    found = model.capabilities
    assert found is not None
    assert found.structured_outputs.supported == ("structured_output" in able)
    assert found.model_dump()["tools"]["supported"] == ("tools" in able)
    assert {found.image_input.supported, found.pdf_input.supported, found.batch.supported} == {False}
    for effort in ("low", "medium", "high", "xhigh", "max"):
        assert ask(site, "/v1/messages", output_config={"effort": effort}) == 200, "it permits, and demands nothing"
        assert getattr(found.effort, effort).supported == ("reasoning" in able), effort
    for kind in ("adaptive", "between_tools", "disabled", "enabled"):
        more = {"budget_tokens": 1024} if kind == "enabled" else {}
        status = ask(site, "/v1/messages", thinking={"type": kind, **more})
        assert getattr(found.thinking.types, kind).supported == (status == 200), kind


def test_engine_without_hidden_states_makes_no_embeddings(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with ScriptedSite(tmp_path) as site:
        assert site.text.can_embed
        assert "embeddings" not in list_capabilities(site)
        answer = site.http.post("/v1/embeddings", json={"model": "toy", "input": "hi"})
        assert (answer.status_code, "no hidden states" in answer.text) == (400, True)


def test_template_for_tools_alone_makes_a_model_able_to_call_them(tmp_path: Path) -> None:
    side = tmp_path / "additional_chat_templates"
    side.mkdir()
    (side / "tool_use.jinja").write_text(TEMPLATE)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    with ScriptedSite(tmp_path, options=NO_LISTS) as site:
        assert "tools" in list_capabilities(site)
        assert ask(site, "/v1/chat/completions", **ASKED["tools"]["/v1/chat/completions"]) == 200


def test_reasoning_may_be_limited_where_the_engine_goes_on_with_answers() -> None:
    with Site(parser=OutputParser(SPEC, PipeParser)) as site:
        found = site.client.get("/v1/models", headers=ANTHROPIC).json()["data"][0]["capabilities"]["thinking"]
        assert (found["supported"], found["types"]["enabled"]) == (True, {"supported": True})
        thinking = {"type": "enabled", "budget_tokens": 8}
        answer = site.client.post("/v1/messages", json={"messages": USER, "max_tokens": 16, "thinking": thinking})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/toy"])
def test_models_have_the_form_of_the_clients_api(site: Site, path: str) -> None:
    plain = site.client.get(path).json()
    other = site.client.get(path, headers=ANTHROPIC).json()
    assert plain.get("object") in {"list", "model"}
    assert "object" not in other
    [model] = other.get("data", [other])
    assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "toy", 400)


def test_error_about_a_model_has_the_form_of_the_clients_api(site: Site) -> None:
    missing = "/v1/models/nothing"
    assert site.client.get(missing).json()["error"]["code"] == "model_not_found"
    answer = site.client.get(missing, headers=ANTHROPIC)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert answer.headers["request-id"] == answer.json()["request_id"]
