"""How much a request permits a model to reason: the same in every API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.scripted import HERMES, TEMPLATE, ScriptedSite

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ eos_token }}{% endfor %}"
ALWAYS = PLAIN + "{% if add_generation_prompt %}<think>\n{% endif %}"
SOMETIMES = PLAIN + "{# it writes <think> when it likes #}"
BOTH = PLAIN + "{{ reasoning_effort }} {{ enable_thinking }}"
USER = [{"role": "user", "content": "hi"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": USER, "max_tokens": 50},
}
LIMITS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"max_reasoning_tokens": 1}),
    (RESPONSES, {"max_reasoning_tokens": 20}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    (MESSAGES, {"thinking": {"type": "adaptive", "budget_tokens": 31999}}),
]
EFFORTS: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {"reasoning_effort": effort}) for effort in ("none", "minimal", "low", "medium", "high", "xhigh")),
    *((RESPONSES, {"reasoning": {"effort": effort}}) for effort in ("none", "high")),
    *((MESSAGES, {"output_config": {"effort": effort}}) for effort in ("low", "max")),
    *((MESSAGES, {"thinking": {"type": kind}}) for kind in ("adaptive", "disabled")),
]
NONE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"reasoning_effort": "none"}),
    (RESPONSES, {"reasoning": {"effort": "none"}}),
    (MESSAGES, {"thinking": {"type": "disabled"}}),
    (MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}),
]


def ask(site: ScriptedSite, route: str, script: str = "Well.", **fields: Any) -> Any:
    site.engine.scripts.append(script)
    return site.http.post(route, json={"model": "toy", **BODIES[route], **fields})


def refuse(site: ScriptedSite, route: str, **fields: Any) -> str:
    response = site.http.post(route, json={"model": "toy", **BODIES[route], **fields})
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


def read_answer(route: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the type and the text of each part of an answer."""
    if route == CHAT:
        message = body["choices"][0]["message"]
        reasoning = message.get("reasoning_content")
        return [*([("reasoning", reasoning)] if reasoning else []), ("text", message["content"])]
    if route == RESPONSES:
        return [("text" if part["type"] == "message" else part["type"], _text(part)) for part in body["output"]]
    return [(part["type"], part.get("text", "")) for part in body["content"]]


def _text(part: dict[str, Any]) -> str:
    return "".join(each.get("text", "") for each in part["content"])


@pytest.mark.parametrize("spec", [None, HERMES])
def test_model_that_does_not_reason_keeps_within_every_effort_and_limit(tmp_path: Path, spec: Any) -> None:
    with ScriptedSite(tmp_path, spec=spec, template=PLAIN) as site:
        for route, fields in [*LIMITS, *EFFORTS]:
            response = ask(site, route, **fields)
            assert response.status_code == 200, (route, fields, response.text)
            assert read_answer(route, response.json()) == [("text", "Well.")]
            assert "think" not in site.prompt
        counted = site.http.post(f"{MESSAGES}/count_tokens", json={"messages": USER, **LIMITS[2][1]})
        assert counted.status_code == 200


@pytest.mark.parametrize(
    ("template", "ending"),
    [
        (ALWAYS, "<think>\n</think>\n\n"),
        (SOMETIMES, "<think></think>\n\n"),
        (TEMPLATE, "hi<end>"),
        (BOTH, "none False"),
    ],
)
def test_none_turns_reasoning_off_whether_the_template_can_or_not(tmp_path: Path, template: str, ending: str) -> None:
    with ScriptedSite(tmp_path, template=template) as site:
        for route, fields in NONE:
            response = ask(site, route, **fields)
            assert response.status_code == 200, response.text
            assert site.prompt.replace(site.text.show(tuple(site.text.stop_ids)[:1]), "<end>").endswith(ending)
            assert read_answer(route, response.json()) == [("text", "Well.")]


def test_answer_that_is_continued_has_reasoned_already(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, template=ALWAYS) as site:
        turns = [*USER, {"role": "assistant", "content": "So"}]
        assert ask(site, MESSAGES, messages=turns, thinking={"type": "disabled"}).status_code == 200
        assert site.prompt.endswith("So")


def test_reasoning_is_permitted_where_the_template_turns_it_on(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path) as site:
        for route, fields in EFFORTS[3:6]:
            assert ask(site, route, **fields).status_code == 200
            assert site.prompt.endswith("<think>\n")


def test_limit_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, template=ALWAYS) as site:
        for route, fields in LIMITS:
            assert "cannot continue an answer" in refuse(site, route, **fields)
    with ScriptedSite(tmp_path, spec=None) as site:
        for route, fields in LIMITS:
            assert "does not know how this model ends its reasoning" in refuse(site, route, **fields)


@pytest.mark.parametrize(
    ("route", "fields", "named"),
    [
        (CHAT, {"reasoning_effort": "most"}, "'reasoning_effort'"),
        (CHAT, {"max_reasoning_tokens": 0}, "'max_reasoning_tokens'"),
        (RESPONSES, {"reasoning": {"effort": "most"}}, "'reasoning.effort'"),
        (RESPONSES, {"max_reasoning_tokens": -1}, "'max_reasoning_tokens'"),
        (MESSAGES, {"output_config": {"effort": "none"}}, "'output_config.effort'"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 0}}, "'thinking.budget_tokens'"),
        (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": 9}}, "'thinking.budget_tokens'"),
        (MESSAGES, {"thinking": {"type": "enabled"}}, "'thinking.budget_tokens'"),
    ],
)
def test_value_out_of_range_is_refused_by_name(tmp_path: Path, route: str, fields: dict[str, Any], named: str) -> None:
    with ScriptedSite(tmp_path, template=PLAIN) as site:
        assert named in refuse(site, route, **fields)
