"""Calls plugin code with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedCall(Generic[T]):
    """A call on a daemon thread, which is abandoned if it takes too long, since a thread cannot be stopped."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"timed call {function!r}")
        self._thread.start()

    def wait(self, limit_s: float) -> T:
        """Return the call's result, or raise its exception.

        Raises:
            TimeoutError: if it does not end within ``limit_s`` seconds.
        """
        self._thread.join(max(0.0, limit_s))
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise TimeoutError(f"no answer within {limit_s:.2g} s")
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 -- passed on to the waiting thread
            self._errors.append(error)
