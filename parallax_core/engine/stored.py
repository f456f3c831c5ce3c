"""The sequences that a head keeps on its stages as prefixes only, and which of them go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Pin
from parallax_core.engine.ledger import Ledger
from parallax_core.engine.pins import KeptPin, PrefixPins
from parallax_core.engine.prefix import ITEM, Match, PrefixIndex


class StoredPrefixes:
    """Stored sequences by use, and the index of all sequences that others can be forks of."""

    def __init__(self, ledger: Ledger, drop: Callable[[SeqId], None], can_drop: Callable[[], bool]) -> None:
        """Store sequences of ``ledger``.

        Args:
            ledger: what the stages hold.
            drop: drops a sequence from the stages.
            can_drop: returns whether the step has room for that.
        """
        self._ledger = ledger
        self._drop_edit = drop
        self._can_drop = can_drop
        self.index = PrefixIndex()
        self.pins = PrefixPins(ledger.capacity if ledger.is_rewindable else 0)
        """The stored sequences that are kept from eviction; none where a prefix cannot be measured in tokens."""
        self._stored: OrderedDict[SeqId, None] = OrderedDict()
        """The least recently used first."""

    def __contains__(self, seq: object) -> bool:
        return seq in self._stored

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[SeqId]:
        """Yield the stored sequences, the least recently used first."""
        return iter(self._stored)

    def keep(self, space: Hashable, key: bytes, seq: SeqId) -> None:
        """Count a sequence as stored."""
        self.index.insert(space, key, seq)
        self._stored[seq] = None

    def touch(self, seq: SeqId) -> None:
        """Mark a stored sequence as the most recently used."""
        if seq in self._stored:
            self._stored.move_to_end(seq)

    def drop(self, seq: SeqId) -> None:
        """Drop a stored sequence."""
        del self._stored[seq]
        self.pins.remove(seq)
        self.index.remove(seq)
        self._drop_edit(seq)

    def find_oldest(self, spared: SeqId | None) -> SeqId | None:
        """Return the least recently used sequence that is not pinned; ``spared`` only if there is no other."""
        for _ in range(len(self.pins)):  # behind the others, so that the next search need not look past them
            if (first := next(iter(self._stored))) not in self.pins:
                break
            self._stored.move_to_end(first)
        free = (seq for seq in self._stored if seq not in self.pins)
        oldest = next(free, None)
        return next(free, oldest) if oldest == spared else oldest

    def find_kept(self, space: Hashable, key: bytes, owner: bytes | None) -> SeqId | None:
        """Return a stored sequence that begins with ``key`` already, or drop stored ones that ``key`` covers.

        ``owner``: who is going to pin it; pins of others stay as they are.
        """
        if not self._ledger.is_rewindable:
            return None
        length, matches = len(key) // ITEM, list(self.index.match(space, key))
        if matches and matches[0].length == length and matches[0].seq in self._stored:
            pin = self.pins.find(matches[0].seq)
            if pin is None or owner in {None, pin.owner}:
                self.touch(matches[0].seq)
                return matches[0].seq
        for match in matches:
            if match.seq in self._stored and self._is_whole(match) and match.seq not in self.pins and self._can_drop():
                self.drop(match.seq)
        return None

    def pin(self, seq: SeqId, space: Hashable, key: bytes, pin: Pin) -> bool:
        """Pin a stored sequence, in place of shorter ones of the same client that it covers; return whether it fits."""
        matches = list(self.index.match(space, key))
        own = {match.seq: held.until for match in matches if (held := self._find_own(match, pin.owner))}
        until = max([self.pins.now + pin.ttl_s, *own.values()])
        if not self.pins.add(seq, KeptPin(pin.owner, self._ledger.length(seq), until), own):
            return False
        for each in own.keys() - {seq}:
            if self._can_drop():
                self.drop(each)
        return True

    def _find_own(self, match: Match, owner: bytes) -> KeptPin | None:
        """Return the pin of a match that is all of a sequence which ``owner`` has pinned."""
        held = self.pins.find(match.seq)
        return held if held is not None and held.owner == owner and self._is_whole(match) else None

    def _is_whole(self, match: Match) -> bool:
        return match.length == self._ledger.length(match.seq)
