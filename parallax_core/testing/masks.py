"""Makes masks, and gives them to a stage at once, late or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parallax_core.api import BackendFailed, Tensor

LATE_S = 0.05
PATIENCE_S = 10.0


def make_mask(tokens: Iterable[int], vocab_size: int) -> Tensor:
    """Return the mask that allows ``tokens`` only."""
    bits = bytearray((vocab_size + 7) // 8)
    for token in tokens:
        bits[token // 8] |= 1 << token % 8
    return Tensor("uint8", (len(bits),), bytes(bits))


@dataclass(slots=True)
class GivenMasks:
    """The masks of a step, which are there when the stage asks; see `MaskSource`."""

    masks: Mapping[int, Tensor]
    num_asked: int = 0

    def wait(self) -> Mapping[int, Tensor]:
        """Return the masks."""
        self.num_asked += 1
        return self.masks


@dataclass(slots=True)
class LateMasks:
    """The masks of a step, which come after the stage has asked for them."""

    masks: Mapping[int, Tensor]
    _come: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Mapping[int, Tensor]:
        """Wait for the masks, which another thread brings."""
        threading.Timer(LATE_S, self._come.set).start()
        assert self._come.wait(PATIENCE_S), "the masks are never brought"
        return self.masks


@dataclass(frozen=True, slots=True)
class MissingMasks:
    """The masks of a step, which do not come in time."""

    def wait(self) -> Mapping[int, Tensor]:
        """Raise BackendFailed."""
        raise BackendFailed("the masks of the step have not come")
