"""Remembers nodes that were taken for lost, and were only silent."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

BACK_S = 10.0
"""Seconds within which the same process joins again that was not lost: it tries at least every two seconds."""
KEPT_S = 1800.0
"""Seconds for which a node is given more time after a false alarm."""
RAISE = 2.0
"""The bound after a false alarm is this many times the silence that was taken for a loss."""
Process = tuple[str, int]
"""The name of a node, and the id of its process."""


class FalseAlarms:
    """The silence that nodes are granted before they count as lost."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._silent: dict[Process, tuple[float, float]] = {}
        """The seconds of silence for which a node was taken for lost, and when."""
        self._bounds: dict[Process, tuple[float, float]] = {}
        """The seconds of silence that are granted, and since when."""

    def note_end(self, process: Process, silence_s: float) -> None:
        """Note that a node is gone, taken for lost after that much silence; 0: for another reason."""
        if not silence_s:
            return
        now = self._clock()
        self._silent = {each: found for each, found in self._silent.items() if now < found[1] + BACK_S}
        self._silent[process] = silence_s, now

    def note_join(self, process: Process) -> float:
        """Return the seconds of silence that a node which joins is granted; 0: as usual."""
        now = self._clock()
        self._bounds = {each: found for each, found in self._bounds.items() if now < found[1] + KEPT_S}
        silence_s, lost_at = self._silent.pop(process, (0.0, now - BACK_S))
        if now < lost_at + BACK_S:
            bound_s, _ = self._bounds.get(process, (0.0, now))
            self._bounds[process] = max(bound_s, RAISE * silence_s), now
        return self._bounds.get(process, (0.0, now))[0]
