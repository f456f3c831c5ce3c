"""A file that comes in any order, from a server that does as it likes, is what was listed or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ParallaxError
from parallax_core.api.source import ByteRanges, name_journal, read_journal, read_present
from parallax_source_hub.download import Download, Incoming, TransientError
from parallax_source_hub.partial_file import PartialFile, RemoteFile

CONTENT = bytes(range(256)) * 4
REMOTE = RemoteFile("model.safetensors", len(CONTENT), "", hashlib.sha256(CONTENT).hexdigest())
WHOLE = ByteRanges([(0, len(CONTENT))])
PATH = Path(REMOTE.name)

ranges = st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 300)), max_size=8)


def write(file: PartialFile, start: int, size: int) -> None:
    with file.writing():
        file.write(start, CONTENT[start : start + size])


def ignore(size: int) -> None:
    """Report nothing."""


@given(ranges)
def test_what_was_written_is_known_to_the_next_process_and_right(writes: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as folder:
        for start, size in writes:
            write(PartialFile(Path(folder), REMOTE), start, size)
        file = PartialFile(Path(folder), REMOTE)
        expected = ByteRanges((start, min(start + size, len(CONTENT))) for start, size in writes)
        assert list(file.present) == list(expected)
        if writes:
            data = file.path.read_bytes()
            assert all(data[start:stop] == CONTENT[start:stop] for start, stop in expected)
            assert data.translate(None, b"\0") or not expected.total


@contextmanager
def answer(trick: tuple[str, int], start: int, stop: int) -> Iterator[Incoming]:
    """Answer a request for a range in some way."""
    kind, number = trick
    if kind == "refuse":
        raise TransientError("busy")
    begin = 0 if kind == "ignore" else start
    end = {"cut": min(stop, begin + number), "more": len(CONTENT)}.get(kind, len(CONTENT) if kind == "ignore" else stop)
    size = 1 + number % 97
    chunks = (CONTENT[at : min(at + size, end)] for at in range(begin, end, size))
    yield Incoming(begin, None if number % 2 else len(CONTENT), chunks)


tricks = st.tuples(st.sampled_from(["fair", "cut", "more", "ignore", "refuse"]), st.integers(0, 700))


@given(ranges, st.lists(tricks, max_size=12))
def test_wanted_bytes_are_right_whatever_the_server_does(
    wanted: list[tuple[int, int]], orders: list[tuple[str, int]]
) -> None:
    left = list(orders)
    goal = ByteRanges((start, min(start + size, len(CONTENT))) for start, size in wanted)
    seen: list[int] = []
    transfer = Download(lambda _, start, stop: answer(left.pop() if left else ("fair", 0), start, stop), [0] * 13)
    with TemporaryDirectory() as folder:
        transfer.fill(PartialFile(Path(folder), REMOTE), goal, seen.append)
        file = PartialFile(Path(folder), REMOTE)
        assert not file.find_missing(goal)
        if goal.total:
            data = file.path.read_bytes()
            assert all(data[start:stop] == CONTENT[start:stop] for start, stop in file.present)
    assert seen == sorted(seen)
    assert seen[-1] == goal.total


@given(st.binary(max_size=300))
def test_journal_of_any_bytes_is_read_and_written_on(junk: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / REMOTE.name
        path.write_bytes(bytes(len(CONTENT)))
        name_journal(path).write_bytes(junk)
        assert read_journal(path) is not None
        file = PartialFile(Path(folder), REMOTE)
        write(file, 100, 50)
        present = read_present(path)
        assert present is not None
        assert present.covers(100, 150)


def test_line_that_was_torn_does_not_spoil_the_next(tmp_path: Path) -> None:
    write(PartialFile(tmp_path, REMOTE), 0, 10)
    with name_journal(tmp_path / PATH).open("a") as journal:
        journal.write("10 2")
    write(PartialFile(tmp_path, REMOTE), 20, 10)
    assert list(PartialFile(tmp_path, REMOTE).present) == [(0, 10), (20, 30)]


def test_file_is_shown_when_it_is_named_and_whole_when_it_is_checked(tmp_path: Path) -> None:
    file = PartialFile(tmp_path, REMOTE)
    write(file, 0, 100)
    assert not (tmp_path / PATH).exists()
    file.name()
    assert list(read_present(tmp_path / PATH) or ()) == [(0, 100)]
    write(file, 100, len(CONTENT))
    checked: list[int] = []
    file.finish(checked.append)
    assert checked[-1] == len(CONTENT)
    assert read_present(tmp_path / PATH) is None
    assert PartialFile(tmp_path, REMOTE).is_whole
    assert [path.name for path in tmp_path.iterdir()] == [REMOTE.name]


def test_file_without_bytes_is_a_file(tmp_path: Path) -> None:
    empty = RemoteFile("merges.txt", 0, hashlib.sha1(b"blob 0\0", usedforsecurity=False).hexdigest())
    file = PartialFile(tmp_path, empty)
    file.finish(ignore)
    assert (tmp_path / "merges.txt").read_bytes() == b""
    assert PartialFile(tmp_path, empty).is_whole


@pytest.mark.parametrize("size", [0, 5, len(CONTENT) + 1])
def test_file_of_another_size_is_begun_anew(tmp_path: Path, size: int) -> None:
    write(PartialFile(tmp_path, REMOTE), 0, 100)
    (tmp_path / f"{PATH}.part").write_bytes(bytes(size))
    file = PartialFile(tmp_path, REMOTE)
    assert not file.present.total
    assert list(tmp_path.iterdir()) == []


def test_wrong_content_is_forgotten_whole(tmp_path: Path) -> None:
    file = PartialFile(tmp_path, REMOTE)
    with file.writing():
        file.write(0, CONTENT[::-1])
    with pytest.raises(ParallaxError, match="arrived damaged"):
        file.finish(ignore)
    assert not PartialFile(tmp_path, REMOTE).present.total


def test_server_that_sends_another_range_is_refused(tmp_path: Path) -> None:
    @contextmanager
    def shift(_: RemoteFile, start: int, stop: int) -> Iterator[Incoming]:
        yield Incoming(start + 1, len(CONTENT), iter([CONTENT[start + 1 : stop]]))

    with pytest.raises(ParallaxError, match="from byte 11 on instead of byte 10"):
        Download(shift, [0]).fill(PartialFile(tmp_path, REMOTE), ByteRanges([(10, 20)]), ignore)
