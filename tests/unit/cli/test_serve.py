from pathlib import Path

import pytest

from parallax_core.base.errors import UsageError
from parallax_core.cli.serve import check_exposure, is_loopback, read_keys


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
    check_exposure("127.0.0.1", frozenset(), insecure=False)
    check_exposure("192.0.2.1", frozenset({"key"}), insecure=False)
    assert not caplog.records
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        check_exposure("192.0.2.1", frozenset(), insecure=False)
    check_exposure("192.0.2.1", frozenset(), insecure=True)
    assert "INSECURE" in caplog.text


def test_keys_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", " outside ")
    path = tmp_path / "keys"
    path.write_text("# ours\n\n one \ntwo\n")
    assert read_keys(path) == {"one", "two", "outside"}
    assert read_keys(None) == {"outside"}
    monkeypatch.setenv("PARALLAX_API_KEY", "")
    assert read_keys(None) == frozenset()


@pytest.mark.parametrize("key", ["s\u00e9same", "two words"])
def test_key_that_no_header_can_carry_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", key)
    with pytest.raises(UsageError, match="HTTP header"):
        read_keys(None)


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\xff\xfe"])
def test_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_keys(path)
