"""The document is written when it is first asked for, and a server goes on without one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from parallax_core.api import ServerDescription
from parallax_openapi import route
from tests.unit.server.letters import Site


def test_api_is_described_when_first_asked_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def write(server: ServerDescription) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {"openapi": "3.1.0", "needs_key": server.needs_key}

    monkeypatch.setattr(route, "write_document", write)
    with Site() as site:
        assert threads == []
        loop = site.client.portal.call(threading.get_ident)  # type: ignore[union-attr]
        for _ in range(2):
            assert site.client.get("/openapi.json").json() == {"openapi": "3.1.0", "needs_key": False}
    assert len(threads) == 1
    assert loop not in threads


def test_server_whose_api_cannot_be_described_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(server: ServerDescription) -> dict[str, Any]:
        del server
        raise TypeError("a route of a plugin has no shape")

    monkeypatch.setattr(route, "write_document", fail)
    with Site() as site:
        assert site.client.get("/openapi.json").status_code == 500
        assert site.client.get("/version").status_code == 200
