import errno
import io
import sys
import time

import pytest

from parallax_core.api import Unit
from parallax_core.cli.progress import Lines, describe, make_display


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (12_300_000, 98_400_000, "bytes", "12.3 of 98.4 MB"),
        (500_000, None, "bytes", "0.5 MB"),
        (3, 30, "items", "3 of 30"),
        (3, None, "items", "3"),
    ],
)
def test_amount_is_told_in_words(done: int, total: int | None, unit: Unit, text: str) -> None:
    assert describe(done, total, unit) == text


def test_lines_tell_the_beginning_and_the_end_and_little_between(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as display:
        for done in range(101):
            display("load", done, 100, "items")
        display("load", 100, 100, "items")
    assert capsys.readouterr().err.splitlines() == ["load: 0 of 100", "load: 100 of 100"]


def test_lines_tell_of_slow_work_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with Lines() as display:
        for done in range(7):
            display("load", done, None, "items")
    assert capsys.readouterr().err.splitlines() == ["load: 0", "load: 3", "load: 6"]


class Full(io.TextIOBase):
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, f"no room for {text!r}")


def test_lines_that_cannot_be_written_end_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    Lines()("load", 1, 1)


def test_bars_are_only_for_terminals() -> None:
    assert isinstance(make_display(), Lines)
