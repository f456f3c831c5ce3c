from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.base.errors import UsageError
from parallax_core.cli.exposure import check_exposure, check_tls, choose_hosts, is_loopback, make_options, read_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 -- not bound here
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_known(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_exposure_needs_a_key_or_an_explicit_word(caplog: pytest.LogCaptureFixture) -> None:
    check_exposure("127.0.0.1", ApiKeys(), insecure=False)
    check_exposure("192.0.2.1", ApiKeys({"key": "user"}), insecure=False)
    assert not caplog.records
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        check_exposure("192.0.2.1", ApiKeys(), insecure=False)
    check_exposure("192.0.2.1", ApiKeys(), insecure=True)
    for power in ("INSECURE", "192.0.2.1", "administrator", "drain", "unload", "fetch"):
        assert power in caplog.text


@pytest.mark.parametrize(
    ("host", "key", "is_exposed"), [("::1", "", False), ("192.0.2.1", "", True), ("192.0.2.1", "k", False)]
)
def test_server_knows_whether_others_reach_it_without_a_key(
    host: str, key: str, is_exposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", key)
    assert make_options(ServeSettings(host=host)).is_exposed is is_exposed


def test_keys_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", " outside ")
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("# ours\n\n one \ntwo metrics\n")
    keys = read_keys(path)
    assert [keys.find_role(key) for key in ("one", "two", "outside", "ours", "")] == [
        "user",
        "metrics",
        "admin",
        None,
        None,
    ]
    assert read_keys(None).find_role("one") is None
    monkeypatch.setenv("PARALLAX_API_KEY", "")
    assert not read_keys(None).are_needed


@pytest.mark.parametrize("key", ["s\u00e9same", "two words", "a\x7fb"])
def test_key_that_no_header_can_carry_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", key)
    with pytest.raises(UsageError, match="HTTP header"):
        read_keys(None)


def test_keyless_server_on_loopback_goes_by_names_of_loopback() -> None:
    usual, none = ApiKeys(), frozenset[str]()
    local = {"localhost", "127.0.0.1", "::1"}
    assert choose_hosts(ServeSettings(), usual) == local
    assert choose_hosts(ServeSettings(host="127.0.0.2"), usual) == {*local, "127.0.0.2"}
    assert choose_hosts(ServeSettings(allowed_host=("llm.lan",)), usual) == {*local, "llm.lan"}
    assert choose_hosts(ServeSettings(), ApiKeys({"k": "user"})) == none
    assert choose_hosts(ServeSettings(host="192.0.2.1"), usual) == none
    assert choose_hosts(ServeSettings(host="192.0.2.1", allowed_host=("llm.lan",)), usual) == {
        *local,
        "192.0.2.1",
        "llm.lan",
    }


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\xff\xfe"])
def test_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_keys(path)


def test_certificate_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    check_tls(ServerOptions())
    with pytest.raises(UsageError, match="without a --tls-cert"):
        check_tls(ServerOptions(tls_key=tmp_path / "key.pem"))
    with pytest.raises(UsageError, match="cannot be used"):
        check_tls(ServerOptions(tls_cert=tmp_path / "missing.pem"))
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(UsageError, match="cannot be used"):
        check_tls(ServerOptions(tls_cert=tmp_path / "bad.pem"))
