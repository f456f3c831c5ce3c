"""Keeps standard output for the command: diverts what plugins print to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def divert_output() -> Iterator[None]:
    """Divert standard output to standard error, for Python, for C libraries, and for programs that they start.

    This affects the whole process, so use it only while the command prints nothing itself.
    """
    with contextlib.redirect_stdout(sys.stderr), _divert_descriptor():
        yield


@contextlib.contextmanager
def claim_output() -> Iterator[TextIO]:
    """Divert standard output for a long-running command, and yield the original for the command's own lines."""
    with _copy_output() as own, divert_output():
        yield own


@contextlib.contextmanager
def _copy_output() -> Iterator[TextIO]:
    """Yield a stream to the current standard output, which stays valid if that is diverted."""
    stream = sys.stdout
    try:
        copy = os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):  # there is no standard output, or it is in memory
        yield stream
        return
    own = os.fdopen(copy, "w", encoding=stream.encoding, errors=stream.errors)
    try:
        yield own
    finally:
        with contextlib.suppress(OSError):  # lines are flushed one by one: whoever wrote them knows already
            own.close()


@contextlib.contextmanager
def _divert_descriptor() -> Iterator[None]:
    saved = -1
    with contextlib.suppress(OSError):  # one of the two descriptors is closed
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
    with contextlib.suppress(AttributeError, ValueError):  # there is no standard output, or it is closed
        sys.__stdout__.flush()  # type: ignore[union-attr]
