"""No client finds in the prefix cache what another one has sent, by whatever route, unless the operator shares it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.contracts.node_service import JoinedMachine
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.cache_salt import CacheSalts
from parallax_core.server.client_id import JOINED_MACHINE
from parallax_core.server.options import ServerOptions
from parallax_core.server.response import CACHE_BLOCK
from tests.unit.server.letters import Site, events
from tests.unit.server.scripted import ScriptedSite

KEYS = ApiKeys({"alice": "user", "mallory": "user"})
SECRET = "the password of the vault is once upon a time, and nobody may ever know it. " * 2
MESSAGES = [{"role": "user", "content": SECRET}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": SECRET, "max_tokens": 1},
    "/v1/embeddings": {"input": SECRET},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": SECRET, "max_output_tokens": 1},
    "/v1/responses/compact": {"input": SECRET},
}


def send(site: Site, path: str, key: str, **fields: Any) -> Any:
    body = {"model": "toy", **BODIES[path], **fields}
    response = site.client.post(path, json=body, headers={"Authorization": f"Bearer {key}"} if key else {})
    assert response.status_code == 200, response.text
    return response


def reuse(site: Site, path: str, key: str, **fields: Any) -> int:
    """Send a request, and return the tokens that its engine found in the cache."""
    before = site.engine.stats()[0].cached_tokens
    send(site, path, key, **fields)
    return site.engine.stats()[0].cached_tokens - before


@pytest.mark.parametrize("path", BODIES)
def test_prompt_of_a_key_is_in_no_cache_of_another(path: str) -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        assert reuse(site, path, "alice") == 0
        assert reuse(site, path, "mallory") == 0
        assert reuse(site, path, "alice") > CACHE_BLOCK


@pytest.mark.parametrize("path", BODIES)
def test_operator_lets_keys_share_a_cache(path: str) -> None:
    with Site(ServerOptions(keys=KEYS, shares_cache=True)) as site:
        assert reuse(site, path, "alice") == 0
        assert reuse(site, path, "mallory") > CACHE_BLOCK


def test_clients_of_a_server_without_keys_share_a_cache() -> None:
    with Site() as site:
        assert reuse(site, "/v1/completions", "") == 0
        assert reuse(site, "/v1/completions", "made-up") > CACHE_BLOCK


@pytest.mark.parametrize("shares_cache", [False, True])
def test_salt_of_a_client_divides_its_cache(shares_cache: bool) -> None:
    with Site(ServerOptions(keys=KEYS, shares_cache=shares_cache)) as site:
        assert reuse(site, "/v1/completions", "alice", cache_salt="one") == 0
        assert reuse(site, "/v1/completions", "alice", cache_salt="two") == 0
        assert reuse(site, "/v1/completions", "alice") == 0
        assert reuse(site, "/v1/completions", "alice", cache_salt="one") > CACHE_BLOCK
        assert (reuse(site, "/v1/completions", "mallory", cache_salt="one") > CACHE_BLOCK) is shares_cache


def test_no_salt_of_a_client_is_that_of_another() -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        scope = {"headers": [(b"authorization", b"Bearer alice")]}
        salt = site.service.salts.derive(scope, "")
        assert reuse(site, "/v1/completions", "alice") == 0
        for guess in (salt, "alice", f"alice{salt}"):
            assert reuse(site, "/v1/completions", "mallory", cache_salt=guess) == 0


def test_pin_and_conversation_of_a_key_are_in_its_own_cache() -> None:
    pinned = [{"role": "user", "content": [{"type": "text", "text": SECRET, "cache_control": {"type": "ephemeral"}}]}]
    with Site(ServerOptions(keys=KEYS)) as site:
        assert reuse(site, "/v1/messages", "alice", messages=pinned) == 0
        assert reuse(site, "/v1/messages", "mallory", messages=pinned) == 0
        first = {key: send(site, "/v1/responses", key, input="a" * 50).json()["id"] for key in ("alice", "mallory")}
        site.engine.stats()
        for key, other in (("alice", "mallory"), ("mallory", "alice")):
            assert reuse(site, "/v1/responses", key, previous_response_id=first[key], input="b") > CACHE_BLOCK
            body = {"model": "toy", "previous_response_id": first[other], "input": "b"}
            refused = site.client.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {key}"})
            assert refused.status_code == 400


def test_use_of_the_cache_is_told_in_blocks() -> None:
    lengths = (20, CACHE_BLOCK, 2 * CACHE_BLOCK - 1, 2 * CACHE_BLOCK, 100)
    with Site() as site:
        send(site, "/v1/completions", "", prompt="a" * 120)
        for length in lengths:  # of each, all but the next letter is in the cache
            prompt = "a" * length + "bc"
            found = send(site, "/v1/completions", "", prompt=prompt).json()["usage"]["prompt_tokens_details"]
            assert found["cached_tokens"] == length // CACHE_BLOCK * CACHE_BLOCK


def test_blocks_of_several_prompts_do_not_add_up_to_the_rest() -> None:
    with Site() as site:
        send(site, "/v1/completions", "", prompt="a" * 50)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        prompts = [f"{'a' * 20}{end}" for end in "bcdefgh"]
        [*_, last, _] = events(send(site, "/v1/completions", "", prompt=prompts, **options))
        assert site.engine.stats()[0].cached_tokens >= 20 * len(prompts)
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_clients_of_a_joined_machine_have_a_cache_of_their_own() -> None:
    salts = CacheSalts()
    here = {"client": ("127.0.0.1", 1), "headers": []}
    guests = [{**here, "state": {JOINED_MACHINE: JoinedMachine(name)}} for name in ("mini", "studio")]
    assert salts.derive(here, "") == ""
    found = [salts.derive(guest, "") for guest in guests]
    assert len({"", *found}) == 3
    assert found == [salts.derive(guest, "") for guest in guests]
    made_up = {**guests[0], "headers": [(b"authorization", b"Bearer studio"), (b"x-api-key", b"root")]}
    assert salts.derive(made_up, "") == found[0]
    assert CacheSalts(ServerOptions(shares_cache=True)).derive(guests[0], "") == ""


def test_client_of_a_joined_machine_is_known_by_its_key() -> None:
    salts = CacheSalts(ServerOptions(keys=KEYS))
    by_key = {"client": ("127.0.0.1", 1), "headers": [(b"x-api-key", b"alice")]}
    assert salts.derive({**by_key, "state": {JOINED_MACHINE: JoinedMachine("mini")}}, "") == salts.derive(by_key, "")


def test_salts_do_not_help_to_guess_a_key() -> None:
    scope = {"headers": [(b"x-api-key", b"alice")]}
    assert CacheSalts(ServerOptions(keys=KEYS)).derive(scope, "") != CacheSalts(ServerOptions(keys=KEYS)).derive(
        scope, ""
    )


def test_engine_that_cannot_keep_keys_apart_serves_them_only_if_they_share(tmp_path: Path) -> None:
    for shares_cache, status in ((False, 500), (True, 200)):
        with ScriptedSite(tmp_path, options=ServerOptions(keys=KEYS, shares_cache=shares_cache)) as site:
            site.engine.info = replace(site.engine.info, honours=site.engine.info.honours - {"salt"})
            site.engine.scripts.append("hi")
            body = {"model": "toy", "prompt": "a"}
            answer = site.http.post("/v1/completions", json=body, headers={"Authorization": "Bearer alice"})
            assert answer.status_code == status
            if status != 200:
                assert "share_cache" in answer.json()["error"]["message"]
            salted = {**body, "cache_salt": "mine"}
            answer = site.http.post("/v1/completions", json=salted, headers={"Authorization": "Bearer alice"})
            assert answer.json()["error"]["param"] == "cache_salt"
