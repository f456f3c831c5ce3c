"""Progress reports of long work."""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "items"]


class Progress(Protocol):
    """A callback for work that takes more than a moment: downloads, conversions, loading.

    Call it as often as you like; the display limits how often it draws. The text identifies a task, which is finished
    when ``done`` reaches ``total``. An exception from the callback ends the work.
    """

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Report that ``done`` of ``total`` units of ``task`` are finished (``None``: the total is unknown)."""


def silent(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
    """A ``Progress`` that shows nothing."""
