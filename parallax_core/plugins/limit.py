"""Code of others within a limit of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedCall(Generic[T]):
    """A call on a daemon thread, which is left behind if it takes too long: nothing can end it from outside."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"errand {function!r}")
        self._thread.start()

    def wait(self, limit_s: float) -> T:
        """Return what the call returned, or raise what it raised.

        Raises:
            TimeoutError: if it is not over within ``limit_s`` seconds.
        """
        self._thread.join(max(0.0, limit_s))
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise TimeoutError(f"there was no answer within {limit_s:.2g} s")
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 -- whoever waits gets it, whatever it is
            self._errors.append(error)
