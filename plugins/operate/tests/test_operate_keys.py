"""API keys are listed, made and revoked over HTTP, in the file that the server reads."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_core.api import UnknownName
from parallax_core.api.dialect import ChangeRefused
from parallax_core.server.api_keys import ApiKeys, KeyFile, digest_key, parse_keys
from parallax_core.server.options import ServerOptions
from parallax_operate.key_file import KeyLimits, add_key, limit_key, list_keys, name_key, remove_key
from tests.unit.server.letters import Site

ADMIN, USER = "sk-" + "a" * 40, "sk-" + "b" * 40
TEXT = f"# operators\n\n# Ann\n{ADMIN} admin\n# Bob\n{USER}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def test_keys_are_listed_with_their_comments_and_without_themselves(path: Path) -> None:
    found = list_keys(path)
    assert [(each.role, each.name) for each in found] == [("admin", "Ann"), ("user", "Bob")]
    assert [each.id for each in found] == [name_key(ADMIN), name_key(USER)]
    assert not any(ADMIN in str(each) or USER in str(each) for each in found)


def test_new_key_is_one_that_the_server_accepts(path: Path) -> None:
    key, line = add_key(path, "metrics", "Prometheus", KeyLimits())
    assert path.read_text() == f"{TEXT}# Prometheus\n{key} metrics\n"
    assert len(parse_keys(path.read_text(), "")) == 3
    assert list_keys(path)[-1] == line
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeyFile(path).find_role(digest_key(key)) == "metrics"


def test_revoked_key_leaves_with_its_comment_alone(path: Path) -> None:
    assert remove_key(path, name_key(USER), has_other_admin=False).name == "Bob"
    assert path.read_text() == f"# operators\n\n# Ann\n{ADMIN} admin\n"
    with pytest.raises(UnknownName, match="there is no API key"):
        remove_key(path, name_key(USER), has_other_admin=False)


def test_key_of_the_last_administrator_stays(path: Path) -> None:
    with pytest.raises(ChangeRefused, match="last key of an administrator"):
        remove_key(path, name_key(ADMIN), has_other_admin=False)
    assert path.read_text() == TEXT
    remove_key(path, name_key(ADMIN), has_other_admin=True)
    assert [each.name for each in list_keys(path)] == ["Bob"]


def test_key_of_a_user_goes_where_there_is_no_administrator(path: Path) -> None:
    path.write_text(f"{USER}\n")
    remove_key(path, name_key(USER), has_other_admin=False)
    assert list_keys(path) == []


def test_file_behind_a_link_is_changed_where_it_is(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    add_key(link, "user", "", KeyLimits())
    assert link.is_symlink()
    assert len(list_keys(path)) == 3


def test_limits_are_kept_with_their_key(path: Path) -> None:
    limits = KeyLimits(max_concurrent=2, max_output_tokens=500)
    key, line = add_key(path, "user", "Eve", limits)
    added = f"# Eve\n#limits: max_concurrent=2 max_output_tokens=500\n{key} user\n"
    assert path.read_text() == TEXT + added
    assert list_keys(path)[-1] == line
    assert KeyFile(path).find_role(digest_key(key)) == "user"
    assert limit_key(path, name_key(USER), KeyLimits(max_per_minute=9)).limits.max_per_minute == 9
    assert [each.limits for each in list_keys(path)] == [KeyLimits(), KeyLimits(max_per_minute=9), limits]
    assert [each.name for each in list_keys(path)] == ["Ann", "Bob", "Eve"]
    limit_key(path, name_key(USER), KeyLimits())
    remove_key(path, name_key(key), has_other_admin=False)
    assert path.read_text() == TEXT
    with pytest.raises(UnknownName, match="there is no API key"):
        limit_key(path, name_key(key), limits)


def test_limits_of_another_version_do_not_lock_anybody_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(f"#limits: max_concurrent=1\n{ADMIN} admin\n#limits: max_dreams=3\n{USER}\n")
    assert [each.limits.max_concurrent for each in list_keys(path)] == [1, 0]
    assert "does not know all of its limits" in caplog.text


@pytest.fixture
def site(path: Path) -> Iterator[Site]:
    with Site(options=ServerOptions(keys=ApiKeys(file=KeyFile(path)), max_concurrent=3)) as site:
        yield site


def test_administrator_makes_and_revokes_keys(site: Site, path: Path) -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    made = site.client.post("/v1/keys?name=Eve&role=user", headers=headers)
    assert (made.status_code, made.headers["Cache-Control"]) == (200, "no-store")
    reply = made.json()
    assert (reply["role"], reply["name"], reply["id"]) == ("user", "Eve", name_key(reply["key"]))
    limited = site.client.post(f"/v1/keys/{reply['id']}/limits?max_per_minute=30", headers=headers).json()
    assert limited["limits"] == {"max_concurrent": 0, "max_per_minute": 30, "max_output_tokens": 0}
    assert site.client.post("/v1/keys/none/limits", headers=headers).status_code == 404
    assert site.client.post(f"/v1/keys/{reply['id']}/limits?max_per_minute=-1", headers=headers).status_code == 400
    shown = site.client.get("/v1/keys", headers=headers)
    assert [each["name"] for each in shown.json()["data"]] == ["Ann", "Bob", "Eve"]
    assert (shown.json()["file"], shown.json()["limits"]["max_concurrent"]) == (str(path), 3)
    assert not any(key in shown.text for key in (ADMIN, USER, reply["key"]))
    gone = site.client.delete(f"/v1/keys/{reply['id']}", headers=headers)
    assert (gone.status_code, gone.json()["name"]) == (200, "Eve")
    assert site.client.delete(f"/v1/keys/{reply['id']}", headers=headers).status_code == 404
    assert site.client.delete(f"/v1/keys/{name_key(ADMIN)}", headers=headers).status_code == 409
    assert path.read_text() == TEXT


@pytest.mark.parametrize("query", ["name=", "name=%23x", "name=a%0Ab", "name=x&role=root", "role=user"])
def test_name_that_would_be_another_line_is_refused(site: Site, path: Path, query: str) -> None:
    assert site.client.post(f"/v1/keys?{query}", headers={"X-Api-Key": ADMIN}).status_code == 400
    assert path.read_text() == TEXT


def test_user_sees_and_changes_no_keys(site: Site) -> None:
    headers = {"Authorization": f"Bearer {USER}"}
    changes = (("POST", "keys?name=x"), ("POST", "keys/x/limits"), ("DELETE", "keys/x"))
    for method, place in (("GET", "keys"), *changes, ("GET", "settings")):
        assert site.client.request(method, f"/v1/{place}", headers=headers).status_code == 403


def test_server_without_a_file_says_so() -> None:
    with Site() as site:
        assert site.client.get("/v1/keys").json()["file"] is None
        refused = site.client.post("/v1/keys?name=x")
        assert refused.status_code == 409
        assert "no file of API keys" in refused.json()["error"]["message"]
