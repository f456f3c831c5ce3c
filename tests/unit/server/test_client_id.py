from __future__ import annotations

from pathlib import Path
from typing import Any

from parallax_core.contracts.node_service import JoinedMachine
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.client_id import JOINED_MACHINE, identify
from parallax_core.server.options import ServerOptions
from tests.unit.server.scripted import ScriptedSite

HERE: dict[str, Any] = {"client": ("127.0.0.1", 1), "headers": []}


def test_machine_with_the_name_of_an_address_or_a_key_is_another_client() -> None:
    named = {**HERE, "state": {JOINED_MACHINE: JoinedMachine("127.0.0.1")}}
    assert identify(named, by_key=False) != identify(HERE, by_key=False)
    key = {**HERE, "headers": [(b"x-api-key", b"127.0.0.1")]}
    kinds = [identify(named, by_key=False), identify(HERE, by_key=False), identify(key, by_key=True)]
    assert [kind.partition(b":")[0] for kind in kinds] == [b"machine", b"address", b"key"]


def test_engine_is_told_which_client_sent_a_request(tmp_path: Path) -> None:
    with ScriptedSite(tmp_path, options=ServerOptions(keys=ApiKeys({"a": "user", "b": "user"}))) as site:
        site.engine.scripts = ["yes"] * 3
        for key in ("a", "b", "a"):
            body = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"Authorization": f"Bearer {key}"}
            assert site.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        first, second, third = [request.client for request in site.engine.requests]
    assert first == third != second
    assert first.startswith(b"key:")
