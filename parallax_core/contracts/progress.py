"""How long work tells a person how far it is."""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "items"]


class Progress(Protocol):
    """A callback for work that takes more than a moment: downloads, conversions, loading.

    Call it as often as you like; whoever shows it decides how often to draw. Tasks are told apart by
    their text, and a task is finished when ``done`` reaches ``total``. An exception it raises ends the work.
    """

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Report that ``done`` of ``total`` units of ``task`` are finished (``None``: total not known)."""


def silent(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
    """A ``Progress`` that shows nothing."""
