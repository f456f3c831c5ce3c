"""With ``PARALLAX_TRACE_HOOKS=1``, prints every hook call to standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sized
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "PARALLAX_TRACE_HOOKS"


def is_tracing() -> bool:
    """Return whether hook calls are traced."""
    return os.environ.get(VARIABLE, "") not in {"", "0"}


def trace_call(hook: str, plugin: str, function: Callable[[], T]) -> T:
    """Call ``function``; if tracing is on, print its plugin, its duration and its result."""
    if not is_tracing():
        return function()
    began = time.perf_counter()
    try:
        result = function()
    except BaseException as error:
        _write(hook, plugin, began, f"raised {type(error).__name__}: {error}")
        raise
    _write(hook, plugin, began, f"returned {_summarize(result)}")
    return result


def _write(hook: str, plugin: str, began: float, outcome: str) -> None:
    took_ms = (time.perf_counter() - began) * 1000
    print(f"hook {hook} plugin={plugin} took={took_ms:.1f}ms {outcome}", file=sys.stderr, flush=True)  # noqa: T201


def _summarize(result: object) -> str:
    if result is None or isinstance(result, str | int | float):
        return repr(result)
    if isinstance(result, Sized):
        return f"{type(result).__name__} of {len(result)}"
    return type(result).__name__
