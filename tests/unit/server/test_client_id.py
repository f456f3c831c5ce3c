from __future__ import annotations

from typing import Any

from parallax_core.server.client_id import JOINED_MACHINE, identify

HERE: dict[str, Any] = {"client": ("127.0.0.1", 1), "headers": []}


def test_machine_with_the_name_of_an_address_or_a_key_is_another_client() -> None:
    named = {**HERE, "state": {JOINED_MACHINE: "127.0.0.1"}}
    assert identify(named, by_key=False) != identify(HERE, by_key=False)
    key = {**HERE, "headers": [(b"x-api-key", b"127.0.0.1")]}
    kinds = [identify(named, by_key=False), identify(HERE, by_key=False), identify(key, by_key=True)]
    assert [kind.partition(b":")[0] for kind in kinds] == [b"machine", b"address", b"key"]
