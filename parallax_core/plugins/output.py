"""Standard output belongs to the command: what plugins print goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def divert_output() -> Iterator[None]:
    """Send to standard error what is printed meanwhile, by Python, by libraries in C, and by programs they start.

    It holds for the whole process, so it is for commands that do nothing else at that time.
    """
    with contextlib.redirect_stdout(sys.stderr), _divert_descriptor():
        yield


@contextlib.contextmanager
def claim_output() -> Iterator[TextIO]:
    """Do the same for a command that runs on, and yield what it writes its own lines to: standard output as it was."""
    with _copy_output() as own, divert_output():
        yield own


@contextlib.contextmanager
def _copy_output() -> Iterator[TextIO]:
    """Yield a stream to where standard output goes now, whatever becomes of it."""
    stream = sys.stdout
    try:
        copy = os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):  # there is none, or it is kept in memory
        yield stream
        return
    _flush()
    with os.fdopen(copy, "w", encoding=stream.encoding, errors=stream.errors) as own:
        yield own


@contextlib.contextmanager
def _divert_descriptor() -> Iterator[None]:
    saved = -1
    with contextlib.suppress(OSError):  # one of the two is closed: there is nothing to divert, or nowhere to go
        _flush()
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def _flush() -> None:
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or it is closed
        sys.__stdout__.flush()  # type: ignore[union-attr]
