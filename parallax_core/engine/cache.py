"""Tracks the sequences held by the stages, makes the edits to them, and keeps prefixes for reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from parallax_core.base.ids import RequestId, SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Row, SequenceSpec
from parallax_core.engine.header_budget import INHERIT, HeaderBudget
from parallax_core.engine.inflight import InflightStep
from parallax_core.engine.ledger import Ledger, PageClaim
from parallax_core.engine.prefix import Match, PrefixIndex
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.stored import StoredPrefixes
from parallax_core.engine.waiting import WaitingQueue
from parallax_core.wire.size import DROP, bound_edit

MOST_EVICTED = 1024
"""Evictions allowed in one step, counted as in `SHORT`; more would block the process for too long."""
SHORT = 512
"""Tokens per counted eviction: a longer stored sequence counts as several."""

MOST_LOOKED_UP = 2**18
"""The most tokens of waiting sequences looked up for one step; more would block the process for too long."""
LOOK_UP = 512
"""The fixed cost of a look-up, counted in tokens."""

Space = Callable[[Sequence], Hashable]
"""Returns what must be equal, besides the tokens, for one sequence to reuse the KV of another."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a prefix look-up for a sequence."""

    match: Match | None
    """The longest prefix that can be forked now."""
    seen: frozenset[SeqId]
    """The stored sequences the result depends on: the match, and longer ones that cannot be forked."""
    coming: Match | None = None
    """A longer prefix that a running sequence is about to compute, and that is worth waiting for."""


class SequenceCache:
    """The sequences on the stages: running ones, and stored ones that are kept as prefixes for others.

    Where sequences cannot be truncated (window and state pools), a running one can be forked at its end only, by
    `branch` and `keep`.

    Every edit is applied to the ledger at once; `take_edits` returns the edits for the next step.
    """

    def __init__(self, ledger: Ledger, budget: HeaderBudget, waiting: WaitingQueue, space: Space) -> None:
        self.ledger = ledger
        self.budget = budget
        self.waiting = waiting
        self._space = space
        self._is_rewindable = ledger.is_rewindable
        self.interval = ledger.interval
        """Prompts are stored at multiples of this number of tokens, where sequences cannot be truncated; 0: never."""
        self._seqs = count()
        self._edits: list[Edit] = []
        self._num_evicted = 0
        """Evictions in the step that is being planned; see `MOST_EVICTED`."""
        self._specs: dict[SeqId, SequenceSpec] = {}
        """The spec of every sequence that the stages hold."""
        self.stored = StoredPrefixes(ledger, lambda seq: self._edit(Drop(seq)), lambda: budget.fits(DROP))
        """Sequences kept as prefixes only."""
        self._coming = PrefixIndex()
        """Running sequences with tokens still to compute, by all of their tokens."""
        self.running: dict[SeqId, Sequence] = {}
        self._requests: Counter[RequestId] = Counter()
        """The number of running answers of each request."""
        self._unpublished: dict[SeqId, int] = {}
        """Running sequences that are not in the index yet, with the length at which they are added."""

    @property
    def num_requests(self) -> int:
        """The number of requests with an answer on the stages."""
        return len(self._requests)

    @property
    def has_edits(self) -> bool:
        """Whether there are edits for the next step."""
        return bool(self._edits)

    def check(self, live: Iterable[Sequence]) -> None:
        """Check that what the stages hold is one of ``live`` or stored, and found by its tokens; for tests."""
        self.ledger.check()
        assert self.running == {each.seq: each for each in live if each.seq is not None}
        assert set(self._specs) == {*self.running, *self.stored}
        assert set(self._unpublished) == set(self._coming) <= set(self.running)
        assert set(self.stored.index) - set(self.running) == set(self.stored)

    def take_edits(self) -> tuple[Edit, ...]:
        """Return the edits made since the last call, in order, and reset the budget for the next step."""
        edits, self._edits, self._num_evicted = tuple(self._edits), [], 0
        self.budget.reset()
        return edits

    def find(self, sequence: Sequence) -> Found:
        """Look up the longest prefix of a waiting sequence that the stages hold or are about to compute."""
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
        """Start a sequence on the stages, as a fork of the match that `find` returned, if any.

        Evicts stored sequences to make room. Returns whether all of its tokens fit into the pages and into the step.
        """
        in_step = sequence.context.cost.begin
        while not _has_room(sequence, found.match, claim):
            if not self.budget.fits(in_step + DROP) or self._num_evicted >= MOST_EVICTED:
                return False
            evicted = self.evict(sequence.request.id, found.match.seq if found.match else None)
            if evicted is None:
                return False
            if evicted in found.seen:
                found = self.find(sequence)
        if not self.budget.fits(in_step):
            return False
        self._begin(sequence, found.match)
        return True

    def branch(self, sequence: Sequence, source: Sequence, claim: PageClaim) -> bool:
        """Start a sequence as a fork of all of a running one, which has no row in this step yet.

        (A row of the source could slide its window past pages that the fork then shares, which would not be freed.)
        """
        assert source.seq is not None
        match = Match(source.seq, source.planned)
        if not self.budget.fits(INHERIT):
            return False
        while not _has_room(sequence, match, claim):
            if self.evict(sequence.request.id) is None:
                return False
        self._begin(sequence, match)
        return True

    def keep(self, sequence: Sequence, claim: PageClaim) -> None:
        """Store a copy of a running sequence, which has no row in this step yet, if there is room."""
        assert sequence.seq is not None
        space, length = self._space(sequence), sequence.planned
        key = sequence.key(length)
        if any(match.length == length and self._can_fork(match) for match in self.stored.index.match(space, key)):
            return
        while not claim.fits_fork(sequence.seq, length):
            if self.evict(sequence.request.id) is None:
                return
        if self.budget.fits(INHERIT):
            copy = SeqId(next(self._seqs))
            self._edit(Fork(sequence.seq, copy, length, sequence.choice))
            self.stored.keep(space, key, copy)

    def keep_due(self, sequence: Sequence, claim: PageClaim) -> None:
        """Store a prompt if it is computed up to a multiple of the interval; see `keep`."""
        length = sequence.planned
        if 0 < length <= sequence.num_prompt and length % self.interval == 0:
            self.keep(sequence, claim)

    def limit_row(self, sequence: Sequence, num_tokens: int) -> int:
        """Return ``num_tokens``, or fewer so that the next row ends where `keep_due` stores the sequence."""
        return min(num_tokens, self.interval - sequence.planned % self.interval)

    def note_planned(self, sequence: Sequence) -> None:
        """Let other sequences fork ``sequence``, which keeps running, up to its planned length."""
        seq, length = sequence.seq, sequence.planned
        if seq not in self._unpublished:
            return
        assert seq is not None
        if length >= self._unpublished[seq]:
            self._hide(seq)
            self.stored.index.insert(self._space(sequence), sequence.key(length), seq)
        self.waiting.note_length(seq, length)

    def park(self, sequence: Sequence) -> SeqId | None:
        """Stop running a sequence; keep its KV on the stages as a prefix, from which it may go on, and return that."""
        seq = self._release(sequence)
        if seq is None:
            return None
        space, key, pin = self._space(sequence), sequence.key(sequence.planned), sequence.request.pin
        if not key:
            kept = None
        elif (kept := self.stored.find_kept(space, key, pin.owner if pin else None)) is None:
            kept = seq
            self.stored.keep(space, key, seq)
        if kept != seq:
            self._edit(Drop(seq))
        return kept

    def retire(self, sequence: Sequence) -> int:
        """Stop running a sequence; keep its KV on the stages as a prefix for others.

        Returns the tokens of its prompt that are pinned now.
        """
        space, key, pin = self._space(sequence), sequence.key(sequence.planned), sequence.request.pin
        kept = self.park(sequence)
        if kept is None or pin is None or sequence.request.n > 1:
            return 0
        is_pinned = self.stored.pin(kept, space, key, pin)
        return min(sequence.planned, sequence.num_prompt) if is_pinned else 0

    def discard(self, sequence: Sequence) -> None:
        """Drop a sequence from the stages to make room; it waits to be computed again."""
        if (seq := self._release(sequence)) is not None:
            self._edit(Drop(seq))
        if sequence.is_waiting and sequence.can_draw:  # else it comes back with its mask
            self.waiting.add(sequence)

    def take_back(self, inflight: InflightStep) -> None:
        """Undo the rows of a failed step that left the stages as they were before."""
        self.ledger.restore(inflight.marks)
        for row, sequence in zip(inflight.rows, inflight.sequences, strict=True):
            self._take_back(row, sequence)

    def _take_back(self, row: Row, sequence: Sequence) -> None:
        seq, space, key = row.seq, self._space(sequence), sequence.key(row.start)
        if sequence.seq == seq:
            sequence.take_back(row.start)
            if seq in self.stored.index:
                self.stored.index.remove(seq)
                self._announce(seq, sequence)
        elif seq in self.stored and key:  # retired meanwhile, row included
            self.stored.index.remove(seq)
            self.stored.index.insert(space, key, seq)
        elif seq in self.stored:
            self.stored.drop(seq)

    def distrust(self, sequence: Sequence, *, is_certain: bool) -> None:
        """Drop a sequence at fault for a failure, and its stored prefixes, which may be the cause.

        Does nothing unless ``is_certain``.
        """
        if not is_certain:
            return
        self.discard(sequence)
        for match in list(self.stored.index.match(self._space(sequence), sequence.key(sequence.num_tokens))):
            if match.seq in self.stored and self.budget.fits(DROP):
                self.stored.drop(match.seq)

    def drop_stored(self) -> None:
        """Drop the stored sequences, as many as the next step has room to drop."""
        while self.evict(RequestId("")) is not None:
            pass

    def evict(self, request: RequestId, spared: SeqId | None = None) -> SeqId | None:
        """Drop the least recently used stored sequence, to make room for ``request``; return it, or None.

        ``spared`` is dropped only if there is no other. A request that is alone on the stages takes the memory of pins,
        too: it could never end otherwise.
        """
        while self.budget.fits(DROP):
            if (oldest := self.stored.find_oldest(spared)) is not None:
                self._num_evicted += 1 + self.ledger.length(oldest) // SHORT
                self.stored.drop(oldest)
                return oldest
            if not (self._requests.keys() <= {request} and self.stored.pins.release()):
                break
        return None

    def _find_stored(self, sequence: Sequence) -> Found:
        longest = sequence.num_reusable
        key = sequence.key(sequence.num_tokens) if longest else b""
        seen: list[SeqId] = []
        for match in self.stored.index.match(self._space(sequence), key):
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
            self.stored.touch(match.seq)
            spec = sequence.context.spec
            inherited = None if self._specs[match.seq] == spec else spec
            self._edit(Fork(match.seq, seq, match.length, sequence.choice, inherited))
        if self._is_rewindable:
            self._announce(seq, sequence)

    def _announce(self, seq: SeqId, sequence: Sequence) -> None:
        """Let other sequences wait for the tokens that this one is about to compute."""
        self._unpublished[seq] = length = sequence.num_tokens
        self._coming.insert(self._space(sequence), sequence.key(length), seq)

    def _hide(self, seq: SeqId) -> None:
        """Stop other sequences from waiting for this one."""
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
        if seq in self.stored.index:
            self.stored.index.remove(seq)
        self.waiting.note_end(seq)
        return seq

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


def count_look_up(sequence: Sequence) -> int:
    """Return what looking up a sequence costs, see `MOST_LOOKED_UP`."""
    return LOOK_UP + sequence.num_tokens


def _has_room(sequence: Sequence, match: Match | None, claim: PageClaim) -> bool:
    """Return whether all tokens of a sequence that forks ``match`` fit."""
    if match is None:
        return claim.fits_new(sequence.num_tokens)
    return claim.fits_new(sequence.num_tokens, match.length) and claim.fits_fork(match.seq, match.length)
