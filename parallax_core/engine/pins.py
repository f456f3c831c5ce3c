"""Pins of stored prefixes: each is kept from eviction, for a time, for one owner."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parallax_core.base.ids import SeqId

CLIENT_SHARE, TOTAL_SHARE = 0.25, 0.5
"""The most of the memory, in tokens, that the pins of one client and of all clients may keep."""
MOST_PINS = 256
"""The most pins: an eviction looks past all of them."""


@dataclass(frozen=True, slots=True)
class KeptPin:
    """A pin on a stored sequence."""

    owner: bytes
    length: int
    """The tokens of the sequence; those that it shares with others count again."""
    until: float
    """The end of the pin, by the head's clock."""


class PrefixPins:
    """The pins of one head. A client that exceeds its share loses its pins that end first."""

    def __init__(self, capacity: int) -> None:
        """Make room for pins in a memory of ``capacity`` tokens."""
        self._most_of_client = int(capacity * CLIENT_SHARE)
        self._most = int(capacity * TOTAL_SHARE)
        self._pins: dict[SeqId, KeptPin] = {}
        self._first_end = math.inf
        self.now = 0.0
        """The time at which the head last planned, by its clock."""

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, seq: object) -> bool:
        return seq in self._pins

    def find(self, seq: SeqId) -> KeptPin | None:
        """Return the pin of a sequence."""
        return self._pins.get(seq)

    def add(self, seq: SeqId, pin: KeptPin, replaced: Iterable[SeqId] = ()) -> bool:
        """Pin a sequence, in place of the pins of ``replaced`` and its own; return whether there was room."""
        before = {each: self._pins.pop(each) for each in {seq, *replaced} & self._pins.keys()}
        others = [each for each in self._pins.values() if each.owner != pin.owner]
        room = min(self._most_of_client, self._most - sum(each.length for each in others))
        if pin.length > room or len(others) >= MOST_PINS:
            self._pins.update(before)
            return False
        own = sorted((each.until, number) for number, each in self._pins.items() if each.owner == pin.owner)
        taken = pin.length + sum(self._pins[number].length for _, number in own)
        for _, number in own:
            if taken <= room and len(self._pins) < MOST_PINS:
                break
            taken -= self._pins.pop(number).length
        self._pins[seq] = pin
        self._first_end = min(self._first_end, pin.until)
        return True

    def remove(self, seq: SeqId) -> None:
        """Forget a sequence; one without a pin may be given, too."""
        self._pins.pop(seq, None)

    def expire(self, now: float) -> None:
        """Forget the pins whose time has passed."""
        self.now = now
        if now < self._first_end:
            return
        self._pins = {seq: pin for seq, pin in self._pins.items() if pin.until > now}
        self._first_end = min((pin.until for pin in self._pins.values()), default=math.inf)

    def release(self) -> bool:
        """Forget the pin that ends first; return whether there was one."""
        if not self._pins:
            return False
        del self._pins[min(self._pins, key=lambda seq: self._pins[seq].until)]
        return True
