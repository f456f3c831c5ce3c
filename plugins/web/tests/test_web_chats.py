"""Conversations that the server keeps belong to their key, and are bounded."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import InvalidRequest, ParallaxError
from parallax_core.api.dialect import ChangeRefused
from parallax_core.server.api_keys import ApiKeys, KeyFile
from parallax_core.server.options import ServerOptions
from parallax_web.chat_routes import find_owner, make_router, open_dialect
from parallax_web.chat_store import OVERHEAD, ChatHeading, ChatStore
from tests.unit.server.letters import Site

ANN, BOB = "sk-" + "a" * 40, "sk-" + "b" * 40
CONTENT = {"messages": [{"id": "1", "text": "a secret"}], "leaf": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats"


@pytest.fixture
def store(path: Path) -> Iterator[ChatStore]:
    store = ChatStore(path, 10_000)
    yield store
    store.close()


@pytest.fixture
def site(tmp_path: Path, store: ChatStore) -> Iterator[Site]:
    keys = tmp_path / "keys"
    keys.write_text(f"{ANN} user\n{BOB} admin\n")
    keys.chmod(0o600)
    with Site(options=ServerOptions(keys=ApiKeys(file=KeyFile(keys)))) as site:
        router = make_router(store, site.quota.identify)
        site.app.state.roles.add_plugins(router)
        site.app.include_router(router)
        yield site


def ask(site: Site, method: str, key: str, name: str = "", **body: Any) -> tuple[int, Any]:
    place = f"/v1/chats/{name}" if name else "/v1/chats"
    answer = site.client.request(method, place, headers={"Authorization": f"Bearer {key}"}, json=body or None)
    return answer.status_code, answer.json()


def write(site: Site, key: str, name: str, **changed: Any) -> int:
    body = {"title": "Hello", "folder": "", "updated": 5.0, "content": CONTENT} | changed
    return ask(site, "PUT", key, name, **body)[0]


def test_conversation_is_written_listed_read_and_deleted(site: Site) -> None:
    assert write(site, ANN, "one") == 200
    assert write(site, ANN, "two", updated=6.0, folder="Work") == 200
    status, found = ask(site, "GET", ANN)
    assert (status, [(each["id"], each["folder"]) for each in found["data"]]) == (200, [("two", "Work"), ("one", "")])
    assert "a secret" not in str(found)
    assert ask(site, "GET", ANN, "one")[1]["content"] == CONTENT
    assert ask(site, "DELETE", ANN, "one") == (200, {"deleted": 1})
    assert ask(site, "GET", ANN, "one")[0] == ask(site, "DELETE", ANN, "one")[0] == 404
    assert ask(site, "DELETE", ANN) == (200, {"deleted": 1})


def test_nobody_sees_or_deletes_those_of_another_key(site: Site) -> None:
    assert write(site, ANN, "one") == 200
    assert ask(site, "GET", BOB)[1]["data"] == []
    assert ask(site, "GET", BOB, "one")[0] == ask(site, "DELETE", BOB, "one")[0] == 404
    assert ask(site, "DELETE", BOB)[1] == {"deleted": 0}
    assert write(site, BOB, "one", title="Mine") == 200
    assert ask(site, "GET", ANN, "one")[1]["title"] == "Hello"
    assert ask(site, "GET", "sk-" + "c" * 40)[0] == 401


def test_version_that_another_browser_has_written_is_not_lost(site: Site) -> None:
    assert write(site, ANN, "one") == 200
    assert write(site, ANN, "one", updated=7.0) == 409
    assert write(site, ANN, "one", updated=7.0, base=4.0) == 409
    assert write(site, ANN, "one", updated=7.0, base=5.0) == 200
    assert ask(site, "GET", ANN, "one")[1]["updated"] == 7.0


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("a b", {}),
        ("x" * 65, {}),
        ("one", {"title": 3}),
        ("one", {"title": "x" * 501}),
        ("one", {"updated": -1}),
        ("one", {"content": []}),
        ("one", {"more": 1}),
    ],
)
def test_what_is_no_conversation_is_refused(site: Site, name: str, changed: dict[str, Any]) -> None:
    assert write(site, ANN, name, **changed) == 400


def test_client_has_room_for_so_much_and_others_for_as_much(store: ChatStore) -> None:
    heading, content = ChatHeading("one", "", "", 1.0), b"x" * (5_000 - OVERHEAD)
    store.write(b"a", heading, None, content)
    store.write(b"a", ChatHeading("two", "", "", 1.0), None, content)
    with pytest.raises(ChangeRefused, match=r"may have 0\.01 MB"):
        store.write(b"a", ChatHeading("three", "", "", 1.0), None, b"")
    store.write(b"a", heading, 1.0, content)  # in place of itself
    store.write(b"b", heading, None, content)
    store.delete(b"a", "two")
    store.write(b"a", ChatHeading("three", "", "", 1.0), None, b"")


def test_file_is_its_owners_alone_and_of_one_server_and_stays(store: ChatStore, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.write(b"a", ChatHeading("one", "", "", 1.0), None, b"{}")
    with pytest.raises(ParallaxError, match="cannot be opened"):
        ChatStore(path, 1)
    store.close()
    again = ChatStore(path, 1)
    assert [each.id for each in again.list(b"a")] == ["one"]
    again.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ParallaxError, match=r"web\.chats|cannot be opened"):
        ChatStore(path, 1)


def test_session_of_a_key_has_those_of_the_key_and_one_of_a_link_has_none() -> None:
    assert find_owner(b"caller:0:key " + b"0a" * 32) == b"key:" + b"\x0a" * 32
    assert find_owner(b"caller:1:Ann of another plugin") == b"caller:Ann of another plugin"
    assert find_owner(b"key:\x0a") == b"key:\x0a"
    assert find_owner(b"address:127.0.0.1") == b"address:127.0.0.1"
    with pytest.raises(InvalidRequest, match="opened by a link"):
        find_owner(b"caller:0:" + b"0a" * 32)


def test_server_without_a_file_keeps_none(site: Site) -> None:
    assert open_dialect(site.models, ServerOptions()).routers == ()
