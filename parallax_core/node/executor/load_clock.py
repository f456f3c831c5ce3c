"""Measures the time since loading last reported progress."""

from __future__ import annotations

import time

from parallax_core.contracts.progress import Progress, Unit, silent

LOADING_HINT = "give it more time with --set load_timeout=SECONDS, if the disk or the model needs that"


class LoadClock:
    """A `Progress` that forwards each report and notes the time of the last one. Thread-safe."""

    def __init__(self, progress: Progress = silent) -> None:
        """Forward reports to ``progress``."""
        self._progress = progress
        self._latest = time.monotonic()

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Forward the progress of ``task``."""
        self._latest = time.monotonic()
        self._progress(task, done, total, unit)

    def start(self) -> None:
        """Start the clock: loading begins now."""
        self._latest = time.monotonic()

    @property
    def silence_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._latest
