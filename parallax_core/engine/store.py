"""What the stages hold and what is worth keeping of it: the ledger of pages, the edits that change it, the prefixes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count

from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open
from parallax_core.engine.ledger import Claim, Ledger
from parallax_core.engine.prefix import Match, PrefixIndex
from parallax_core.engine.sequence import Sequence

Space = Callable[[Sequence], Hashable]
"""Names what must be equal, beside the tokens, for one sequence to serve another."""


class Store:
    """The sequences on the stages: running ones, and stored ones that are only kept for their beginnings.

    Where sequences cannot go back (windows, states), a running one is no beginning for others, unless it is forked
    right where it is: by `branch` and `keep`.

    Every edit is applied to the ledger as it is made, and handed over by `take_edits` for the next step.
    """

    def __init__(self, ledger: Ledger, space: Space, interval: int = 0) -> None:
        self._ledger = ledger
        self._space = space
        self._is_rewindable = ledger.is_rewindable
        self.interval = interval
        """Prompts are kept at multiples of so many tokens, where sequences cannot go back; 0: nowhere."""
        self._seqs = count()
        self._edits: list[Edit] = []
        self._index = PrefixIndex()
        self._running: set[SeqId] = set()

    def take_edits(self) -> tuple[Edit, ...]:
        """Return the edits made since the last call, in order."""
        edits, self._edits = tuple(self._edits), []
        return edits

    def admit(self, sequence: Sequence, claim: Claim) -> bool:
        """Begin a sequence on the stages, as a fork of what they hold if possible.

        Makes room among what is only stored, and returns whether there is room for all of its tokens.
        """
        while True:
            match = self._find(sequence)
            if _has_room(sequence, match, claim):
                break
            if not self.evict(match.seq if match else None) and not (match and self.evict(None)):
                return False
        self._begin(sequence, match)
        return True

    def branch(self, sequence: Sequence, source: Sequence, claim: Claim) -> bool:
        """Begin a sequence as all that the stages hold of a running one, which has no row in this step yet.

        (A window of the source would forget pages in its row that the fork then shares, and so not give them back.)
        """
        assert source.seq is not None
        match = Match(source.seq, source.planned)
        while not _has_room(sequence, match, claim):
            if not self.evict(None):
                return False
        self._begin(sequence, match)
        return True

    def keep(self, sequence: Sequence, claim: Claim) -> None:
        """Store what the stages hold of a running sequence, which has no row in this step yet, if there is room."""
        assert sequence.seq is not None
        space, tokens = self._space(sequence), sequence.tokens[: sequence.planned]
        matches = self._index.match(space, tokens)
        if any(match.length == len(tokens) and self._can_fork(match) for match in matches):
            return
        while not claim.fits_fork(sequence.seq, len(tokens)):
            if not self.evict(None):
                return
        copy = SeqId(next(self._seqs))
        self._edit(Fork(sequence.seq, copy, len(tokens), sequence.choice))
        self._index.insert(space, tokens, copy)

    def keep_due(self, sequence: Sequence, claim: Claim) -> None:
        """Store a prompt whose computing has come to where it is to be kept; see `keep`."""
        length = sequence.planned
        if 0 < length <= sequence.num_prompt and length % self.interval == 0:
            self.keep(sequence, claim)

    def limit_row(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many of so many tokens the next row may have, to end where the sequence is to be kept."""
        return min(num_tokens, self.interval - sequence.planned % self.interval)

    def note_prompt(self, sequence: Sequence) -> None:
        """Let others begin as ``sequence``, which runs on, now that its prompt is planned."""
        assert sequence.seq is not None
        if self._is_rewindable and sequence.seq not in self._index:
            self._index.insert(self._space(sequence), sequence.tokens[: sequence.planned], sequence.seq)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence that will not run on; keep what the stages hold of it for others."""
        seq = self._release(sequence)
        if seq is None:
            return
        tokens = sequence.tokens[: sequence.planned]
        if tokens and not self._is_needless(sequence, tokens):
            self._index.insert(self._space(sequence), tokens, seq)
        else:
            self._drop(seq)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence off the stages, to make room."""
        if (seq := self._release(sequence)) is not None:
            self._drop(seq)

    def evict(self, spared: SeqId | None) -> bool:
        """Drop the stored sequence that was used longest ago, if there is one beside ``spared``."""
        for seq in self._index.oldest():
            if seq not in self._running and seq != spared:
                self._index.remove(seq)
                self._drop(seq)
                return True
        return False

    def _find(self, sequence: Sequence) -> Match | None:
        """Return the longest beginning that can be forked."""
        longest = sequence.num_reusable
        for match in self._index.match(self._space(sequence), sequence.tokens) if longest else ():
            found = Match(match.seq, min(match.length, longest))
            if self._can_fork(found):
                return found
        return None

    def _can_fork(self, match: Match) -> bool:
        return match.length <= self._ledger.length(match.seq) and self._ledger.can_rewind(match.seq, match.length)

    def _begin(self, sequence: Sequence, match: Match | None) -> None:
        seq = SeqId(next(self._seqs))
        self._running.add(seq)
        if match is None:
            sequence.begin(seq, 0)
            self._edit(Open(seq, sequence.spec, sequence.choice))
            return
        sequence.begin(seq, match.length)
        if match.seq in self._index:
            self._index.touch(match.seq)
        self._edit(Fork(match.seq, seq, match.length, sequence.choice, sequence.spec))

    def _release(self, sequence: Sequence) -> SeqId | None:
        seq, sequence.seq = sequence.seq, None
        if seq is not None:
            self._running.discard(seq)
            if seq in self._index:
                self._index.remove(seq)
        return seq

    def _is_needless(self, sequence: Sequence, tokens: list[int]) -> bool:
        """Whether another stored sequence begins with all of ``tokens``; drop those that these make needless."""
        if not self._is_rewindable:
            return False
        matches = list(self._index.match(self._space(sequence), tokens))
        if matches and matches[0].length == len(tokens) and matches[0].seq not in self._running:
            self._index.touch(matches[0].seq)
            return True
        for match in matches:
            if match.seq not in self._running and match.length == self._ledger.length(match.seq):
                self._index.remove(match.seq)
                self._drop(match.seq)
        return False

    def _drop(self, seq: SeqId) -> None:
        self._edit(Drop(seq))

    def _edit(self, edit: Edit) -> None:
        self._ledger.edit(edit)
        self._edits.append(edit)


def _has_room(sequence: Sequence, match: Match | None, claim: Claim) -> bool:
    """Whether all tokens of a sequence fit that begins as ``match``."""
    if match is None:
        return claim.fits_new(len(sequence.tokens))
    return claim.fits_new(len(sequence.tokens), match.length) and claim.fits_fork(match.seq, match.length)
