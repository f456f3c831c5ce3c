"""The memory that stages keep for LoRA adapters, by the settings of their head."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from parallax_adapters.settings import CHOSEN
from parallax_core.api import ParallaxError, format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True, slots=True)
class KeptRoom:
    """Room for some adapters, each on all matrices of the layers."""

    slots: int = 0
    """The adapters; 0: no room is kept."""
    rank: int = 0
    """Of each."""

    def weigh(self, item_bytes: float, more: int = 0) -> float:
        """Return the bytes for each row and column of a matrix.

        Args:
            item_bytes: of a number.
            more: what takes as much besides, such as an adapter of zeros.
        """
        return (self.slots + more) * self.rank * item_bytes if self.slots else 0.0

    def take(self, free: float, taken: float) -> float:
        """Return what is left of free memory, in bytes, after some is kept for adapters.

        Raises:
            ParallaxError: if there is too little.
        """
        if not self.slots:
            return free
        what = f"{self.slots} adapters of rank {self.rank}"
        if taken >= free:
            message = f"{what} take {format_bytes(taken)} beside these layers, and {format_bytes(free)} are free"
            hint = "lower max_adapters or max_rank in [adapters], or keep no room: PARALLAX_ADAPTERS__RESERVE=false"
            raise ParallaxError(message, hint)
        logger.info("memory kept for adapters: %s for %s", format_bytes(taken), what)
        return free - taken


def find_own_room() -> KeptRoom:
    """Return the room that this process is to keep by its own settings."""
    settings = CHOSEN.settings
    return KeptRoom(settings.max_adapters, settings.max_rank) if settings.reserve else KeptRoom()
