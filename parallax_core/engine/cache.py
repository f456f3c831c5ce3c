"""What the stages hold and what is worth keeping of it: the ledger of pages, the edits that change it, the prefixes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import count

from parallax_core.base.ids import RequestId, SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Row, SequenceSpec
from parallax_core.engine.header_budget import INHERIT, HeaderBudget
from parallax_core.engine.inflight import InflightStep
from parallax_core.engine.ledger import Ledger, PageClaim
from parallax_core.engine.prefix import ITEM, Match, PrefixIndex
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.waiting import WaitingQueue
from parallax_core.wire.size import DROP, bound_edit

MOST_EVICTED = 1024
"""Stored sequences that make room for those who wait in one step, a long one counting for several: a plan that drops
more would hold up the process."""
SHORT = 512
"""Tokens of a stored sequence that counts for one."""

Space = Callable[[Sequence], Hashable]
"""Names what must be equal, beside the tokens, for one sequence to serve another."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up has found for a sequence."""

    match: Match | None
    """The longest beginning that can be forked now."""
    seen: frozenset[SeqId]
    """The stored sequences it depends on: the match, and longer ones that cannot be forked."""
    coming: Match | None = None
    """A longer beginning that a running sequence is about to compute, and that is worth waiting for."""


class SequenceCache:
    """The sequences on the stages: running ones, and stored ones that are only kept for their beginnings.

    Where sequences cannot go back (windows, states), a running one is no beginning for others, unless it is forked
    right where it is: by `branch` and `keep`.

    Every edit is applied to the ledger as it is made, and handed over by `take_edits` for the next step.
    """

    def __init__(self, ledger: Ledger, budget: HeaderBudget, waiting: WaitingQueue, space: Space) -> None:
        self.ledger = ledger
        self.budget = budget
        self.waiting = waiting
        self._space = space
        self._is_rewindable = ledger.is_rewindable
        self.interval = ledger.interval
        """Prompts are kept at multiples of so many tokens, where sequences cannot go back; 0: nowhere."""
        self._seqs = count()
        self._edits: list[Edit] = []
        self._num_evicted = 0
        """In the step that is being planned; see `MOST_EVICTED`."""
        self._specs: dict[SeqId, SequenceSpec] = {}
        """Of every sequence the stages hold."""
        self._index = PrefixIndex()
        self._coming = PrefixIndex()
        """Running sequences that are being computed, by all of their tokens."""
        self.running: dict[SeqId, Sequence] = {}
        self._requests: Counter[RequestId] = Counter()
        """How many answers to each request are running."""
        self._stored: OrderedDict[SeqId, None] = OrderedDict()
        """Those that are only kept for their beginnings, the least recently used first."""
        self._unpublished: dict[SeqId, int] = {}
        """Running sequences that are not in the index, with the length from which they are."""

    @property
    def num_requests(self) -> int:
        """Requests that the stages hold an answer of."""
        return len(self._requests)

    def take_edits(self) -> tuple[Edit, ...]:
        """Return the edits made since the last call, in order, for a step; the budget is that of the next one then."""
        edits, self._edits, self._num_evicted = tuple(self._edits), [], 0
        self.budget.reset()
        return edits

    def find(self, sequence: Sequence) -> Found:
        """Look up what the stages hold, or are about to, of the beginning of a sequence that waits."""
        found = self._find_stored(sequence)
        if not self._coming:
            return found
        ahead = next(self._coming.match(self._space(sequence), sequence.key(sequence.num_reusable)), None)
        if ahead is None:
            return found
        source, have = self.running[ahead.seq], found.match.length if found.match else 0
        if (held := min(ahead.length, source.planned)) > have:
            found, have = replace(found, match=Match(ahead.seq, held)), held
        is_sibling = source.context is sequence.context
        is_worth_it = ahead.length - have >= (1 if is_sibling else self.waiting.min_shared)
        if is_worth_it and (is_sibling or source.rank < sequence.rank):
            return replace(found, coming=ahead)
        return found

    def admit(self, sequence: Sequence, found: Found, claim: PageClaim) -> bool:
        """Begin a sequence on the stages, as a fork of what `find` has found if there is anything.

        Makes room among what is only stored, and returns whether there is room for all of its tokens, and in the step.
        """
        in_step = sequence.context.cost.begin
        while not _has_room(sequence, found.match, claim):
            if not self.budget.fits(in_step + DROP) or self._num_evicted >= MOST_EVICTED:
                return False
            spared = found.match.seq if found.match else None
            evicted = self._evict_oldest(spared)
            if evicted is None and spared is not None:
                evicted = self._evict_oldest(None)
            if evicted is None:
                return False
            if evicted in found.seen:
                found = self.find(sequence)
        if not self.budget.fits(in_step):
            return False
        self._begin(sequence, found.match)
        return True

    def branch(self, sequence: Sequence, source: Sequence, claim: PageClaim) -> bool:
        """Begin a sequence as all that the stages hold of a running one, which has no row in this step yet.

        (A window of the source would forget pages in its row that the fork then shares, and so not give them back.)
        """
        assert source.seq is not None
        match = Match(source.seq, source.planned)
        if not self.budget.fits(INHERIT):
            return False
        while not _has_room(sequence, match, claim):
            if not self.evict(None):
                return False
        self._begin(sequence, match)
        return True

    def keep(self, sequence: Sequence, claim: PageClaim) -> None:
        """Store what the stages hold of a running sequence, which has no row in this step yet, if there is room."""
        assert sequence.seq is not None
        space, length = self._space(sequence), sequence.planned
        key = sequence.key(length)
        if any(match.length == length and self._can_fork(match) for match in self._index.match(space, key)):
            return
        while not claim.fits_fork(sequence.seq, length):
            if not self.evict(None):
                return
        if self.budget.fits(INHERIT):
            copy = SeqId(next(self._seqs))
            self._edit(Fork(sequence.seq, copy, length, sequence.choice))
            self._keep(space, key, copy)

    def keep_due(self, sequence: Sequence, claim: PageClaim) -> None:
        """Store a prompt whose computing has come to where it is to be kept; see `keep`."""
        length = sequence.planned
        if 0 < length <= sequence.num_prompt and length % self.interval == 0:
            self.keep(sequence, claim)

    def limit_row(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many of so many tokens the next row may have, to end where the sequence is to be kept."""
        return min(num_tokens, self.interval - sequence.planned % self.interval)

    def note_planned(self, sequence: Sequence) -> None:
        """Let others begin as ``sequence``, which runs on, as far as it is planned."""
        seq, length = sequence.seq, sequence.planned
        if seq not in self._unpublished:
            return
        assert seq is not None
        if length >= self._unpublished[seq]:
            self._hide(seq)
            self._index.insert(self._space(sequence), sequence.key(length), seq)
        self.waiting.note_length(seq, length)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence that will not run on; keep what the stages hold of it for others."""
        seq = self._release(sequence)
        if seq is None:
            return
        space, key = self._space(sequence), sequence.key(sequence.planned)
        if key and not self._is_needless(space, key):
            self._keep(space, key, seq)
        else:
            self._edit(Drop(seq))

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence off the stages, to make room; it waits to begin again."""
        if (seq := self._release(sequence)) is not None:
            self._edit(Drop(seq))
        if sequence.is_waiting:
            self.waiting.add(sequence)

    def take_back(self, inflight: InflightStep) -> None:
        """Forget the rows of a step that failed, and left the stages as they were before."""
        self.ledger.restore(inflight.marks)
        for row, sequence in zip(inflight.rows, inflight.sequences, strict=True):
            self._take_back(row, sequence)

    def _take_back(self, row: Row, sequence: Sequence) -> None:
        seq, space, key = row.seq, self._space(sequence), sequence.key(row.start)
        if sequence.seq == seq:
            sequence.take_back(row.start)
            if seq in self._index:
                self._index.remove(seq)
                self._announce(seq, sequence)
        elif seq in self._stored and key:  # it was retired meanwhile, row and all
            self._index.remove(seq)
            self._index.insert(space, key, seq)
        elif seq in self._stored:
            self._drop(seq)

    def distrust(self, sequence: Sequence, *, is_certain: bool) -> None:
        """Drop a sequence that is at fault for a failure, and what is stored of its beginning: it may be the cause.

        Not where it is not certain whose fault it is.
        """
        if not is_certain:
            return
        self.discard(sequence)
        for match in list(self._index.match(self._space(sequence), sequence.key(sequence.num_tokens))):
            if match.seq in self._stored and self.budget.fits(DROP):
                self._drop(match.seq)

    def evict(self, spared: SeqId | None) -> bool:
        """Drop the stored sequence that was used longest ago, if there is one beside ``spared``."""
        return self._evict_oldest(spared) is not None

    def _evict_oldest(self, spared: SeqId | None) -> SeqId | None:
        if not self.budget.fits(DROP):
            return None
        for seq in self._stored:
            if seq != spared:
                self._num_evicted += 1 + self.ledger.length(seq) // SHORT
                self._drop(seq)
                return seq
        return None

    def _find_stored(self, sequence: Sequence) -> Found:
        longest = sequence.num_reusable
        key = sequence.key(sequence.num_tokens) if longest else b""
        seen: list[SeqId] = []
        for match in self._index.match(self._space(sequence), key):
            seen.append(match.seq)
            found = Match(match.seq, min(match.length, longest))
            if self._can_fork(found):
                return Found(found, frozenset(seen))
        return Found(None, frozenset(seen))

    def _can_fork(self, match: Match) -> bool:
        return match.length <= self.ledger.length(match.seq) and self.ledger.can_rewind(match.seq, match.length)

    def _begin(self, sequence: Sequence, match: Match | None) -> None:
        seq = SeqId(next(self._seqs))
        self.waiting.discard(sequence)
        self.running[seq] = sequence
        self._requests[sequence.request.id] += 1
        if match is None:
            sequence.begin(seq, 0)
            self._edit(Open(seq, sequence.context.spec, sequence.choice))
        else:
            sequence.begin(seq, match.length)
            self._touch(match.seq)
            spec = sequence.context.spec
            inherited = None if self._specs[match.seq] == spec else spec
            self._edit(Fork(match.seq, seq, match.length, sequence.choice, inherited))
        if self._is_rewindable:
            self._announce(seq, sequence)

    def _announce(self, seq: SeqId, sequence: Sequence) -> None:
        """Let others wait for what a sequence is about to compute."""
        self._unpublished[seq] = length = sequence.num_tokens
        self._coming.insert(self._space(sequence), sequence.key(length), seq)

    def _hide(self, seq: SeqId) -> None:
        """Let nobody wait for a sequence any more."""
        if self._unpublished.pop(seq, None) is not None:
            self._coming.remove(seq)

    def _release(self, sequence: Sequence) -> SeqId | None:
        seq, sequence.seq = sequence.seq, None
        if seq is None:
            return None
        del self.running[seq]
        self._requests[sequence.request.id] -= 1
        if not self._requests[sequence.request.id]:
            del self._requests[sequence.request.id]
        self._hide(seq)
        if seq in self._index:
            self._index.remove(seq)
        self.waiting.note_end(seq)
        return seq

    def _is_needless(self, space: Hashable, key: bytes) -> bool:
        """Whether another stored sequence begins with all of ``key``; drop those that it makes needless."""
        if not self._is_rewindable:
            return False
        length, matches = len(key) // ITEM, list(self._index.match(space, key))
        if matches and matches[0].length == length and matches[0].seq in self._stored:
            self._touch(matches[0].seq)
            return True
        for match in matches:
            is_covered = match.seq in self._stored and match.length == self.ledger.length(match.seq)
            if is_covered and self.budget.fits(DROP):
                self._drop(match.seq)
        return False

    def _keep(self, space: Hashable, key: bytes, seq: SeqId) -> None:
        """Count a sequence as stored."""
        self._index.insert(space, key, seq)
        self._stored[seq] = None

    def _touch(self, seq: SeqId) -> None:
        """Note that a sequence was used now."""
        if seq in self._stored:
            self._stored.move_to_end(seq)

    def _drop(self, seq: SeqId) -> None:
        """Drop a stored sequence."""
        del self._stored[seq]
        self._index.remove(seq)
        self._edit(Drop(seq))

    def _edit(self, edit: Edit) -> None:
        self.ledger.edit(edit)
        self._edits.append(edit)
        self.budget.take(bound_edit(edit))
        match edit:
            case Open(seq, spec):
                self._specs[seq] = spec
            case Fork(src, dst, spec=spec):
                self._specs[dst] = spec or self._specs[src]
            case Drop(seq):
                del self._specs[seq]


def _has_room(sequence: Sequence, match: Match | None, claim: PageClaim) -> bool:
    """Whether all tokens of a sequence fit that begins as ``match``."""
    if match is None:
        return claim.fits_new(sequence.num_tokens)
    return claim.fits_new(sequence.num_tokens, match.length) and claim.fits_fork(match.seq, match.length)
