"""References to the items of kept responses, on the whole way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_api_responses.part_list import find_response
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from plugins.api_responses.tests.responses_client import CUSTOM, FUNCTION, ROUTE, THOUGHT, ask, error_of, post
from tests.unit.server.scripted import ScriptedSite, write_call

HEX = "0123456789abcdef"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        yield site


def refer(name: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": name}


def list_input(site: ScriptedSite, name: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = site.http.get(f"{ROUTE}/{name}/input_items", params={"order": "asc"}).json()["data"]
    return data


def test_items_of_input_and_output_are_put_in_place_of_references(site: ScriptedSite) -> None:
    first = ask(site, f"{THOUGHT}Hello.", input=[{"role": "user", "content": "one"}, {"role": "user", "content": "x"}])
    reasoning, message = first["output"]
    question = list_input(site, first["id"])[0]["id"]
    parts = [refer(question), refer(reasoning["id"]), {"id": message["id"]}, {"role": "user", "content": "two"}]
    second = ask(site, "Yes.", input=parts)
    assert "<user>x" not in site.prompt
    places = [site.prompt.index(text) for text in ("<user>one", "<assistant>Hello.(Let me think.)", "<user>two")]
    assert places == sorted(places)
    listed = list_input(site, second["id"])
    assert [part["id"] for part in listed[:3]] == [question, reasoning["id"], message["id"]]
    ask(site, "Yes.", input="three", previous_response_id=second["id"])
    assert "<assistant>Hello.(Let me think.)" in site.prompt


def test_result_follows_the_reference_to_its_call(site: ScriptedSite) -> None:
    tools = [FUNCTION, CUSTOM]
    first = ask(site, write_call("apply_patch", {"input": "a b"}), tools=tools)
    call = first["output"][0]
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    ask(site, "Yes.", tools=tools, input=[refer(call["id"]), result], stream=None, store=False)
    assert f'[{call["call_id"]} apply_patch {{"input": "a b"}}]' in site.prompt
    assert f"<tool>done#{call['call_id']}" in site.prompt


@pytest.mark.parametrize("name", ["msg_mine", f"msg_{'0' * 52}", f"msg_{'0' * 48}i0000", "é", "' OR 1=1"])
def test_reference_to_an_unknown_item_gets_a_404(site: ScriptedSite, name: str) -> None:
    error = error_of(post(site, input=[refer(name)]), 404)
    assert (error["param"], error["code"]) == ("input", "not_found")
    assert f"'{name}'" in error["message"]


def test_reference_to_an_item_that_its_response_lacks_gets_a_404(site: ScriptedSite) -> None:
    number = ask(site, "Hello.")["id"].removeprefix("resp_")
    for name in (f"msg_{number}0001", f"rs_{number}0000", f"msg_{number}i0001"):
        error_of(post(site, input=[refer(name)]), 404)


def test_item_of_a_response_that_is_not_kept_gets_a_404(site: ScriptedSite) -> None:
    name = ask(site, "Hello.", store=False)["output"][0]["id"]
    error_of(post(site, input=[refer(name)]), 404)
    kept = ask(site, "Hello.")
    site.http.delete(f"{ROUTE}/{kept['id']}")
    error_of(post(site, input=[refer(kept["output"][0]["id"])]), 404)


def test_item_belongs_to_its_key(tmp_path: Path) -> None:
    options = ServerOptions(keys=ApiKeys({"secret": "user", "other": "user", "boss": "admin"}))
    me, other, boss = ({"Authorization": f"Bearer {key}"} for key in ("secret", "other", "boss"))
    with ScriptedSite(tmp_path, options=options) as site:
        site.engine.scripts += ["Hello.", "Yes."]
        body: dict[str, Any] = {"model": "toy", "input": "hi"}
        item = site.http.post(ROUTE, json=body, headers=me).json()["output"][0]["id"]
        body = {"model": "toy", "input": [refer(item)]}
        for headers in (other, boss):
            error_of(site.http.post(ROUTE, json=body, headers=headers), 404)
        assert site.http.post(ROUTE, json=body, headers=me).status_code == 200


def test_conversation_is_compacted_with_references(site: ScriptedSite) -> None:
    item = ask(site, "Hello.")["output"][0]["id"]
    site.engine.scripts.append("Short.")
    answer = site.http.post(f"{ROUTE}/compact", json={"model": "toy", "input": [refer(item)]})
    assert answer.status_code == 200, answer.text
    assert "<assistant>Hello." in site.prompt


def test_server_without_a_store_has_no_items(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(response_bytes=0)) as site:
        error_of(post(site, input=[refer(ask(site, "Hello.")["output"][0]["id"])]), 404)


def test_official_client_sends_references(site: ScriptedSite) -> None:
    site.engine.scripts += ["Hello.", "Yes."]
    client = site.openai.responses
    item = client.create(model="toy", input="hi").output[0].id
    assert item is not None
    assert client.create(model="toy", input=[{"type": "item_reference", "id": item}]).output_text == "Yes."
    with pytest.raises(openai.NotFoundError):
        client.create(model="toy", input=[{"type": "item_reference", "id": "msg_unknown"}])


@given(st.text(HEX, min_size=48, max_size=48), st.sampled_from(["msg", "rs", "fc"]), st.integers(0, 99_999))
def test_response_is_found_by_the_id_of_its_item(number: str, kind: str, at: int) -> None:
    assert find_response(f"{kind}_{number}{at:04x}") == find_response(f"{kind}_{number}i{at:04x}") == f"resp_{number}"


@given(st.text(max_size=80))
def test_text_that_is_no_id_finds_no_response(name: str) -> None:
    assert find_response(name) is None
