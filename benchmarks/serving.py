"""Runs `parallax serve` for a benchmark."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def serving(parallax: Path, *arguments: str) -> Iterator[tuple[str, str]]:
    """Run ``parallax serve`` on a free port, and yield its URL, which ends with ``/v1``, and the name of its model."""
    command = [str(parallax), "serve", *arguments, "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("ready "):
                log.seek(0)
                raise SystemExit(f"the server did not become ready:\n{log.read()}")
            yield line.split()[1], line.split("model=")[1].strip()
        finally:
            process.terminate()
            process.wait(20)
