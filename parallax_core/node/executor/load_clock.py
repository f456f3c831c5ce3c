"""How long ago loading last said how far it is."""

from __future__ import annotations

import time

from parallax_core.contracts.progress import Progress, Unit, silent

LOADING_HINT = "give it more time with --load-timeout, if the disk or the model needs that"


class LoadClock:
    """A `Progress` that passes on what it is told, and notes when that was. Any thread may call it and ask it."""

    def __init__(self, progress: Progress = silent) -> None:
        """Pass on to ``progress``."""
        self._progress = progress
        self._latest = time.monotonic()

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Pass on how far ``task`` is."""
        self._latest = time.monotonic()
        self._progress(task, done, total, unit)

    def start(self) -> None:
        """Begin to count: loading begins now."""
        self._latest = time.monotonic()

    @property
    def silence_s(self) -> float:
        """For how many seconds nothing was said."""
        return time.monotonic() - self._latest
