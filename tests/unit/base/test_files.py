import errno
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.base.files import read_object, replace_file


def test_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"né": [1]}', encoding="utf-8")
    assert read_object(tmp_path / "a.json") == {"né": [1]}


@pytest.mark.parametrize(
    ("content", "said"), [(b"{", "not valid JSON"), (b"\xff", "not valid JSON"), (b"[]", "a JSON list")]
)
def test_what_is_no_object_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ParallaxError, match=f"a.json .*{said}"):
        read_object(tmp_path / "a.json")


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_object(tmp_path / "a.json")


def test_file_that_cannot_be_replaced_stays_and_no_draft_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")

    def fill(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, f"no room for {data!r}")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a.json", b"old")]
