"""Keys of a file, as it is edited while a server runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.errors import UsageError
from parallax_core.server import api_keys as keys
from parallax_core.server.api_keys import ROLES, ApiKeys, KeyFile, Role, digest_key, parse_keys


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of keys that is looked at each time, and believed as soon as it is written."""
    monkeypatch.setattr(keys, "LOOK_S", 0.0)
    monkeypatch.setattr(keys, "SETTLE_S", 0.0)
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("alice\nbob admin\n")
    return path


def find(found: ApiKeys, *names: str) -> list[Role | None]:
    return [found.find_role(name) for name in names]


def test_file_that_changes_is_read_again(path: Path) -> None:
    found = ApiKeys(file=KeyFile(path))
    assert find(found, "alice", "bob", "carol") == ["user", "admin", None]
    path.write_text("bob metrics\ncarol\n")
    assert find(found, "alice", "bob", "carol") == [None, "metrics", "user"]


def test_file_that_takes_the_place_of_another_is_read(path: Path) -> None:
    found = ApiKeys(file=KeyFile(path))
    other = path.with_suffix(".new")
    other.write_text("carol\nbob admin\n")  # as long, and maybe as old
    other.replace(path)
    assert find(found, "alice", "carol") == [None, "user"]


def test_file_without_keys_any_more_lets_nobody_in(path: Path) -> None:
    found = ApiKeys(file=KeyFile(path))
    path.write_text("# alice\n")
    assert find(found, "alice", "bob", "# alice", "") == [None] * 4
    assert found.are_needed


def damage_line(path: Path) -> None:
    path.write_text("alice\nbob root\n")


def damage_text(path: Path) -> None:
    path.write_bytes(b"alice\n\xff\n")


@pytest.mark.parametrize("damage", [damage_line, damage_text, Path.unlink])
def test_file_that_cannot_be_read_again_leaves_keys_as_they_were(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    found = ApiKeys(file=KeyFile(path))
    damage(path)
    for _ in range(3):
        assert find(found, "alice", "bob") == ["user", "admin"]
    assert caplog.text.count("API keys stay as they were") == 1
    path.write_text("carol\n")
    assert find(found, "alice", "carol") == [None, "user"]


def test_file_that_is_being_written_is_not_believed_yet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ApiKeys(file=KeyFile(path))
    monkeypatch.setattr(keys, "SETTLE_S", 60.0)
    path.write_text("")
    assert find(found, "alice") == ["user"]
    path.write_text("alice\nbob\ncarol\n")
    assert find(found, "carol") == [None], "it has changed again"
    assert find(found, "carol") == ["user"], "it has not"


def test_change_of_long_ago_holds_at_the_first_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ApiKeys(file=KeyFile(path))
    monkeypatch.setattr(keys, "SETTLE_S", 0.5)
    path.write_text("bob\n")
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert find(found, "alice") == [None]


def test_file_is_looked_at_once_in_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ApiKeys(file=KeyFile(path))
    monkeypatch.setattr(keys, "LOOK_S", 60.0)
    path.write_text("carol\n")
    assert find(found, "alice") == ["user"]
    now = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert find(found, "alice", "carol") == [None, "user"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("two words", "line 2 of here is not a key with a role"),
        ("key user admin", "line 2 of here is not a key with a role"),
        ("key Admin", "line 2 of here is not a key with a role"),
        ("s\u00e9same", "line 2 of here cannot be sent in an HTTP header"),
        ("a\x00b", "line 2 of here cannot be sent in an HTTP header"),
        ("first admin", "line 2 of here gives a key another role"),
    ],
)
def test_line_that_is_no_key_is_named_and_not_shown(line: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_keys(f"first\n{line}\n", "here")
    assert line not in str(caught.value)


@given(st.dictionaries(st.from_regex(r"[!-~]{1,40}", fullmatch=True), st.sampled_from(ROLES)))
def test_keys_that_are_written_are_those_that_are_read(given_: dict[str, Role]) -> None:
    text = "".join(f"  {key}\t{role} \r\n\n" for key, role in given_.items())
    expected = {digest_key(key): role for key, role in given_.items() if not key.startswith("#")}
    assert parse_keys(text, "here") == expected


def test_file_without_a_key_is_refused_at_the_start(path: Path) -> None:
    path.write_text("# nobody\n")
    with pytest.raises(UsageError, match="there is no API key"):
        KeyFile(path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        KeyFile(path)


def test_file_of_keys_is_counted_and_not_shown(path: Path) -> None:
    file = KeyFile(path)
    assert str(file) == "1 user, 0 metrics, 1 admin"
    assert "alice" not in repr(vars(file))
    assert "alice" not in repr(vars(ApiKeys({"alice": "user"})))


def test_key_without_a_file_is_the_only_one() -> None:
    found = ApiKeys({"mine": "admin"})
    assert find(found, "mine", "yours", "") == ["admin", None, None]
    assert find(ApiKeys(), "anything", "") == ["admin", "admin"]


def test_file_whose_permissions_change_is_read_again(path: Path) -> None:
    if os.geteuid() == 0:  # root reads everything: only the change itself can be seen
        found = ApiKeys(file=KeyFile(path))
        path.chmod(0o400)
        assert find(found, "alice") == ["user"]
        return
    found = ApiKeys(file=KeyFile(path))
    path.chmod(0)
    assert find(found, "alice") == ["user"]
    path.chmod(0o600)
    assert find(found, "alice") == ["user"]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(0o640, "can read"), (0o604, "can read"), (0o644, "can read"), (0o620, "can write"), (0o602, "can write")],
)
def test_file_that_others_can_read_or_write_is_refused_at_the_start(path: Path, mode: int, reason: str) -> None:
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"other users {reason} the API keys in {path}") as caught:
        KeyFile(path)
    assert f"chmod 600 {path}" in caught.value.hint


def test_key_that_is_taken_out_is_gone_although_others_can_read_the_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = ApiKeys(file=KeyFile(path))
    path.write_text("bob admin\n")
    path.chmod(0o644)
    assert find(found, "alice", "bob") == [None, "admin"]
    assert caplog.text.count("other users can read the API keys") == 1


def test_file_that_others_can_write_meanwhile_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = ApiKeys(file=KeyFile(path))
    path.write_text("eve admin\n")
    path.chmod(0o666)
    assert find(found, "alice", "eve") == ["user", None]
    assert "API keys stay as they were: other users can write" in caplog.text


def test_mounted_secret_of_root_may_be_read_by_others_and_a_file_of_another_user_counts_as_written_by_him(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o444)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:
        assert find(ApiKeys(file=KeyFile(path)), "alice") == ["user"]
    else:
        with pytest.raises(UsageError, match="can write"):
            KeyFile(path)
