"""Ollama's API over the whole server, whose engine answers from a script."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parallax_web.plugin
from parallax_core.api import InvalidRequest
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import extend_app
from parallax_core.server.served_adapters import ServedAdapter
from parallax_server_ollama import plugin
from parallax_server_ollama.bodies import ChatBody, EmbedBody, GenerateBody, ShowBody, read
from tests.unit.server.scripted import LENGTH, ScriptedSite, write_call

THOUGHT = "<think>\nLet me think.\n</think>\n\n"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "hi"}


class OllamaSite(ScriptedSite):
    """The server with the plugin."""

    def __init__(self, folder: Path, options: ServerOptions | None = None, **given: Any) -> None:
        super().__init__(folder, options=options, **given)
        host = PluginHost(
            (PluginRecord(name=name, distribution="x", version="1", module=name, state="loaded"), module)
            for name, module in {"ollama": plugin, "web": parallax_web.plugin}.items()
        )
        app: Any = self.http.app
        extend_app(app, self.models, host)
        assert not any(record.reason for record in host.records)

    def post(self, name: str, script: str = "", **fields: Any) -> Any:
        if script:
            self.engine.scripts.append(script)
        return self.http.post(f"/api/{name}", json={"model": "toy:latest", **fields})

    def stream(self, name: str, script: str, **fields: Any) -> list[dict[str, Any]]:
        answer = self.post(name, script, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OllamaSite]:
    with OllamaSite(tmp_path) as site:
        yield site


def chat(site: OllamaSite, script: str, **fields: Any) -> dict[str, Any]:
    """Return a whole answer, after checking that a stream says the same."""
    fields = {"messages": [USER], **fields}
    parts = site.stream("chat", script, **fields)
    answer = site.post("chat", script, stream=False, **fields)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    messages = [part["message"] for part in parts]
    assert "".join(each["content"] for each in messages) == whole["message"]["content"]
    assert "".join(each.get("thinking", "") for each in messages) == whole["message"].get("thinking", "")
    assert [each["tool_calls"] for each in messages if "tool_calls" in each] == [
        calls for calls in [whole["message"].get("tool_calls")] if calls
    ]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    for name in ("done_reason", "prompt_eval_count", "eval_count"):
        assert parts[-1][name] == whole[name]
    return whole


def error_of(answer: Any, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    return str(answer.json()["error"])


def test_chat_is_answered_whole_and_as_lines(site: OllamaSite) -> None:
    whole = chat(site, "Hello there.")
    assert whole["model"] == "toy:latest"
    assert whole["message"] == {"role": "assistant", "content": "Hello there."}
    assert whole["done_reason"] == "stop"
    assert whole["eval_count"] > 0 < whole["prompt_eval_count"]
    assert whole["total_duration"] >= whole["eval_duration"] >= 0
    assert whole["created_at"].endswith("Z")
    assert len(site.stream("chat", "Hello there.", messages=[USER])) > 3, "a line for each token"


def test_reasoning_is_thinking(site: OllamaSite) -> None:
    expected = {"role": "assistant", "content": "Hello.", "thinking": "Let me think."}
    assert chat(site, f"{THOUGHT}Hello.")["message"] == expected
    assert chat(site, f"{THOUGHT}Hello.".removeprefix("<think>\n"), think=True)["message"] == expected
    assert site.prompt.endswith("<think>\n")
    chat(site, "Hello.", think=False)
    assert "<think>" not in site.prompt
    messages = [USER, {"role": "assistant", "content": "Yes.", "thinking": "Hm."}, USER]
    chat(site, "Hello.", messages=messages)
    assert "<assistant>Yes.(Hm.)" in site.prompt


def test_calls_have_their_arguments_as_objects(site: OllamaSite) -> None:
    script = f"{write_call('look_up', {'word': 'é'})}\n{write_call('look_up', {})}"
    whole = chat(site, script, tools=[TOOL])
    assert [call["function"] for call in whole["message"]["tool_calls"]] == [
        {"index": 0, "name": "look_up", "arguments": {"word": "é"}},
        {"index": 1, "name": "look_up", "arguments": {}},
    ]


@pytest.mark.parametrize("arguments", ['{"word": }', "{'word': 1}", '{"word": "x",}'])
def test_call_that_is_no_json_is_text(site: OllamaSite, arguments: str) -> None:
    script = f'<tool_call>{{"name": "look_up", "arguments": {arguments}}}</tool_call>'
    message = chat(site, script, tools=[TOOL])["message"]
    assert "look_up" in message["content"]
    assert "tool_calls" not in message


def test_results_belong_to_their_calls(site: OllamaSite) -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("one", "two", "one")]
    results = [{"role": "tool", "content": text, "tool_name": name} for name, text in (("two", "B"), ("one", "A"))]
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    chat(site, "Hello.", messages=[*messages, {"role": "tool", "content": "C"}], tools=[TOOL])
    assert '[call_1_0 one {"a": 1}][call_1_1 two {"a": 1}][call_1_2 one {"a": 1}]' in site.prompt
    for text in ("B#call_1_1", "A#call_1_0", "C#call_1_2"):
        assert f"<tool>{text}" in site.prompt
    error = error_of(site.post("chat", messages=[USER, {"role": "tool", "content": "x"}]))
    assert "'messages.1'" in error


def test_form_of_the_answer_is_enforced(site: OllamaSite) -> None:
    chat(site, "{}", format="json")
    assert site.engine.requests[-1].grammar is not None
    chat(site, "{}", format={"type": "object", "properties": {}})
    assert site.engine.requests[-1].grammar is not None
    chat(site, "any", format="")
    assert site.engine.requests[-1].grammar is None


def test_options_are_those_of_the_server(site: OllamaSite) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "num_predict": 4,
        "stop": ["zz"],
        "num_ctx": LENGTH,
    }
    whole = chat(site, "Hello there.", options=options, keep_alive="5m")
    assert (whole["done_reason"], whole["eval_count"]) == ("length", 4)
    sampling = site.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.seed, sampling.repetition_penalty) == (3, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, 0.4)
    assert site.engine.requests[-1].max_tokens == 4
    assert chat(site, "Hello there.", options={"num_predict": -1})["done_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"options": {"mirostat": 1}}, "mirostat"),
        ({"options": {"num_gpu": 1}}, "num_gpu"),
        ({"options": {"num_ctx": LENGTH + 1}}, "options.num_ctx"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"temperature": 9}}, "temperature"),
        ({"messages": [{**USER, "images": ["aGk="]}]}, "images"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"colour": "red"}, "colour"),
        ({"think": "much"}, "think"),
        ({"format": "xml"}, "format"),
        ({"tools": [{"type": "other"}]}, "tools"),
        ({"messages": [], "keep_alive": 0}, "keep_alive"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(site: OllamaSite, fields: dict[str, Any], name: str) -> None:
    assert name in error_of(site.post("chat", **{"messages": [USER], **fields}))


def test_prompt_is_completed_with_a_template_or_as_it_is(site: OllamaSite) -> None:
    lines = site.stream("generate", f"{THOUGHT}Hello.", prompt="hi", system="be kind")
    assert "".join(line["response"] for line in lines) == "Hello."
    assert "".join(line.get("thinking", "") for line in lines) == "Let me think."
    assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "stop")
    assert "<system>be kind" in site.prompt
    for streams in (True, False):
        answer = site.post("generate", "Hello.", prompt="hi", raw=True, stream=streams)
        parts = [json.loads(line) for line in answer.text.splitlines()]
        assert "".join(part["response"] for part in parts) == "Hello."
        assert site.prompt == "hi"
    assert "'raw'" in error_of(site.post("generate", prompt="hi", system="be kind", raw=True))
    refused: dict[str, Any] = {"suffix": "x", "template": "x", "context": [1, 2], "images": ["x"]}
    for name, value in refused.items():
        assert name in error_of(site.http.post("/api/generate", json={"model": "toy", "prompt": "hi", name: value}))


NEUTRAL: list[dict[str, Any]] = [
    {"logprobs": False, "top_logprobs": 0, "truncate": True, "shift": True},
    {"truncate": False, "shift": False, "logprobs": None},
    {"options": {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0, "typical_p": 1.0}},
    {"options": {"repeat_last_n": 64, "num_keep": 4, "penalize_newline": True, "seed": None}},
    {"options": {"repeat_last_n": -1, "repeat_penalty": 1.1, "num_gpu": -1, "num_thread": 0}},
    {"options": {"low_vram": False, "use_mmap": True, "numa": False, "vocab_only": False}},
    {"messages": [USER, {"role": "assistant", "content": "x", "images": None, "tool_calls": []}, USER]},
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_values_that_ask_for_nothing_are_accepted(site: OllamaSite, fields: dict[str, Any]) -> None:
    chat(site, "Hello.", **fields)
    if "messages" not in fields:
        assert site.post("generate", "Hello.", prompt="hi", stream=False, **fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"options": {"mirostat": 2}}, "mirostat"),
        ({"options": {"mirostat": False}}, "mirostat"),
        ({"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "repeat_last_n"),
        ({"options": {"penalize_newline": False}}, "penalize_newline"),
        ({"options": {"tfs_z": 0.5}}, "tfs_z"),
    ],
)
def test_other_values_of_these_fields_are_refused(site: OllamaSite, fields: dict[str, Any], name: str) -> None:
    assert name in error_of(site.post("chat", messages=[USER], **fields))


def test_times_of_a_whole_answer_are_those_of_its_tokens(site: OllamaSite) -> None:
    answer = site.post("chat", "Hello there. " * 40, messages=[USER], stream=False).json()
    assert answer["eval_count"] > 40
    assert answer["prompt_eval_duration"] + answer["eval_duration"] == pytest.approx(answer["total_duration"], rel=0.01)
    assert answer["eval_duration"] > answer["total_duration"] / 20


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ eos_token }}{% endfor %}"
ALWAYS = PLAIN + "<think>\n"


@pytest.mark.parametrize(("template", "thinks"), [(PLAIN, False), (ALWAYS, True), (None, True)])
def test_capability_says_whether_a_model_thinks_and_thinking_is_never_demanded(
    tmp_path: Path, template: str | None, *, thinks: bool
) -> None:
    given: dict[str, Any] = {} if template is None else {"template": template}
    with OllamaSite(tmp_path, **given) as site:
        assert ("thinking" in site.post("show").json()["capabilities"]) == thinks
        assert "tools" in site.post("show").json()["capabilities"]
        assert site.post("chat", "Hello.", messages=[USER], tools=[TOOL]).status_code == 200
        for think in (True, False, "low", "high"):
            answer = site.post("chat", "Hello.", messages=[USER], think=think, stream=False)
            assert answer.status_code == 200, think
            assert thinks or answer.json()["message"] == {"role": "assistant", "content": "Hello."}
            assert think or not site.prompt.endswith("<think>\n")


@pytest.mark.parametrize("path", ["/api/pull", "/api/embeddings", "/api/chat/x", "/api"])
def test_error_has_ollamas_form_wherever_it_comes_from(site: OllamaSite, path: str) -> None:
    assert error_of(site.http.post(path, json={"model": "x"}), 404)
    assert error_of(site.http.put("/api/chat", json={}), 405)
    assert set(site.http.post("/apis", json={}).json()["error"]) >= {"message", "type"}


def test_model_is_loaded_already(site: OllamaSite) -> None:
    for name, field in (("chat", "message"), ("generate", "response")):
        answer = site.post(name).json()
        assert (answer["done"], answer["done_reason"], field in answer) == (True, "load", True)


def test_models_are_listed_and_shown(site: OllamaSite) -> None:
    for name in ("tags", "ps"):
        [model] = site.http.get(f"/api/{name}").json()["models"]
        assert (model["name"], model["model"]) == ("toy", "toy")
    shown = site.post("show").json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["parallax.context_length"] == LENGTH
    assert site.http.get("/api/version").json()["version"]


@pytest.mark.parametrize("keys", [ApiKeys({}), ApiKeys({"secret": "user"})])
def test_clients_but_browsers_are_greeted_as_ollama_greets_them(tmp_path: Path, keys: ApiKeys) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    with OllamaSite(tmp_path, options=ServerOptions(keys=keys)) as site:
        assert site.http.get("/").text == "Ollama is running"
        assert (site.http.head("/").status_code, site.http.head("/", headers=browser).status_code) == (200, 200)
        page = site.http.get("/", headers=browser)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_header_of_another_api_changes_nothing(site: OllamaSite) -> None:
    headers = {"Anthropic-Version": "2023-06-01"}
    assert site.http.get("/api/tags", headers=headers).json() == site.http.get("/api/tags").json()


def test_unknown_model_gets_a_404(site: OllamaSite) -> None:
    for name, fields in (("chat", {"messages": [USER]}), ("generate", {"prompt": "a"}), ("show", {})):
        error = error_of(site.http.post(f"/api/{name}", json={"model": "other", **fields}), 404)
        assert "'other' not found" in error
    assert error_of(site.http.post("/api/embed", json={"model": "other", "input": "a"}), 404)


def test_name_with_the_tag_goes_before_that_without(site: OllamaSite) -> None:
    for name, key in (("law:latest", "1" * 32), ("law", "2" * 32), ("sql:latest", "3" * 32), ("tax", "4" * 32)):
        site.service.adapters[name] = ServedAdapter(name=name, model_id="toy", key=key, root="/x")
    wanted = {"law:latest": "1", "law": "2", "sql:latest": "3", "tax:latest": "4", "tax": "4"}
    for name, key in wanted.items():
        site.engine.scripts.append("hi")
        asked = {"model": name, "messages": [USER], "stream": False}
        assert site.http.post("/api/chat", json=asked).json()["model"] == name
        assert site.engine.requests[-1].adapter == key * 32
    assert error_of(site.http.post("/api/chat", json={"model": "sql", "messages": [USER]}), 404)
    assert site.http.post("/api/show", json={"model": "sql:latest"}).status_code == 200


def test_model_without_embeddings_says_so(site: OllamaSite) -> None:
    assert "makes no embeddings" in error_of(site.post("embed", input=["a"]))


def test_key_is_needed_like_everywhere(tmp_path: Path) -> None:
    options = ServerOptions(keys=ApiKeys({"secret": "user"}), max_per_minute=4)
    with OllamaSite(tmp_path, options) as site:
        body = {"model": "toy", "messages": [USER], "stream": False}
        for path in ("/api/chat", "/api/generate", "/api/embed", "/api/show"):
            assert "no valid API key" in error_of(site.http.post(path, json=body), 401)
        for path in ("/api/tags", "/api/ps", "/api/version"):
            assert site.http.get(path).status_code == 401
        site.engine.scripts += ["Yes."] * 4
        key = {"Authorization": "Bearer secret"}
        statuses = [site.http.post("/api/chat", json=body, headers=key).status_code for _ in range(5)]
        assert statuses == [200] * 4 + [429], "each request counts once"


def test_client_that_leaves_ends_its_answer(site: OllamaSite) -> None:
    site.engine.scripts.append("Hello. " * 200)
    with site.http.stream("POST", "/api/chat", json={"model": "toy", "messages": [USER]}) as answer:
        assert answer.status_code == 200
    assert site.ask("Yes.").choices[0].message.content == "Yes.", "the server goes on"


@given(st.binary(max_size=60), st.sampled_from([ChatBody, GenerateBody, EmbedBody, ShowBody]))
def test_bytes_from_outside_are_read_or_refused(data: bytes, kind: Any) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(read(data, kind), kind)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["model", "messages", "options", "prompt", "input", "think", "tools"]), JSON))
def test_json_from_outside_is_read_or_refused(content: dict[str, Any]) -> None:
    for kind in (ChatBody, GenerateBody, EmbedBody, ShowBody):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(read(json.dumps(content).encode(), kind), kind)
