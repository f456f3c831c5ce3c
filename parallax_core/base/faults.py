"""Tells the faults of code that is called from the ways in which generators and programs are ended."""

from __future__ import annotations

ENDINGS = (GeneratorExit, KeyboardInterrupt)
"""What ends a generator or a program: pass it on. All else is a fault, whatever its class: a panic in a library written
in Rust is a `BaseException` and no `Exception`. For code that is awaited see `TASK_ENDINGS`."""


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error."""
    return f"{type(error).__name__}: {error}"
