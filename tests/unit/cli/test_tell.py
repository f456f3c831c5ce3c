from __future__ import annotations

import errno
import io
import json
import sys

import pytest

from parallax_core.cli.tell import tell


class Refusing(io.StringIO):
    """A stream that cannot be written."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def flush(self) -> None:
        raise OSError(self._number, "it cannot be written")


def test_line_that_a_full_disk_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    tell("ready", stream)
    assert stream.getvalue() == "ready\n"
    tell("ready http://127.0.0.1:1/v1", Refusing(errno.ENOSPC))
    assert "the disk of the output is full; not written: ready http://127.0.0.1:1/v1" in caplog.text


def test_reader_that_has_ended_is_an_error() -> None:
    with pytest.raises(BrokenPipeError):
        tell("ready", Refusing(errno.EPIPE))


def test_line_beside_a_log_of_json_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PARALLAX_LOG_FORMAT", "json")
    tell("loading", sys.stderr)
    tell("ready", sys.stdout)
    shown = capsys.readouterr()
    assert (json.loads(shown.err)["message"], shown.out) == ("loading", "ready\n")
