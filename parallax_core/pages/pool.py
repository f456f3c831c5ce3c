"""One pool of pages: reference counts, sharing, copy on write, windows and states.

The result depends only on the calls made, so the head, which makes the same calls, knows every page of every stage
without asking. A stage stores at the ids it is given and moves nothing on its own.

Two kinds of pools differ from the full one. A *window* pool frees pages that no later token can attend to: at a step
with start s, those entirely below ``s - window - rewind + 1``. A *state* pool holds one page per sequence, whatever its
length, that every step overwrites.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from parallax_core.base.errors import OutOfPages
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, PoolInfo, Truncate
from parallax_core.pages.free import FreePages

UNBOUNDED = 2**53
"""Longer than any sequence."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first ``num_slots`` token slots of page ``src`` to page ``dst``, before anything else is written."""

    src: int
    dst: int
    num_slots: int


@dataclass(slots=True)
class Holding:
    """The pages of one sequence."""

    length: int = 0
    """Tokens of the sequence, including those of freed pages."""
    first: int = 0
    """The number of leading pages that the window has freed."""
    pages: tuple[int, ...] = ()
    """Page ids; the one at index i holds the tokens from ``(first + i) * page_size`` on. A tuple, so that `Mark` and
    callers share it; most steps of most sequences leave it as it is."""
    room: int = 0
    """Growing up to this length takes, copies and frees no page, as in most steps of most sequences; 0: unknown."""

    def copy(self) -> Holding:
        """Return an independent copy, in constant time."""
        return Holding(self.length, self.first, self.pages, self.room)


@dataclass(frozen=True, slots=True)
class Mark:
    """The pages that some sequences held; see `PagePool.restore`."""

    holdings: Mapping[SeqId, Holding]


class PagePool:
    """Allocates the pages of one pool. Every call takes time in the pages it touches, never in the pool's size.

    Invariants, checked by `check`: every page is either free or live; a page's references are its holders; a page with
    several holders, or a pinned one, is never allocated and never written.
    """

    def __init__(self, info: PoolInfo) -> None:
        self.info = info
        self._free = FreePages(info.num_pages)
        self._refs: dict[int, int] = {}
        self._pins: dict[int, int] = {}
        self._holdings: dict[SeqId, Holding] = {}

    @property
    def num_free(self) -> int:
        """The number of pages that can be allocated now."""
        return len(self._free)

    def __contains__(self, seq: object) -> bool:
        return seq in self._holdings

    def length(self, seq: SeqId) -> int:
        """Return the length of a sequence in tokens."""
        return self._holdings[seq].length

    def pages(self, seq: SeqId) -> tuple[int, tuple[int, ...]]:
        """Return the number of freed leading pages, and the ids of the rest in order."""
        holding = self._holdings[seq]
        return holding.first, holding.pages

    def open(self, seq: SeqId) -> None:
        """Open an empty sequence.

        Raises:
            KeyError: if it is open already.
        """
        self._check_new(seq)
        self._holdings[seq] = Holding()

    def num_needed(self, seq: SeqId, count: int) -> int:
        """Return the free pages that `extend` by ``count`` tokens would take, minus those that it frees first."""
        holding = self._holdings[seq]
        if holding.length + count <= holding.room:
            return 0
        return self._weigh(holding, count, self._refs)

    def num_needed_fork(self, src: SeqId, length: int) -> int:
        """Return the free pages that `fork` at ``length`` would take: those it copies."""
        source = self._holdings[src]
        num_pages = min(len(source.pages), self._num_pages(length) - source.first)
        return num_pages - (self._num_shared(length) - source.first if num_pages and self.info.shares else 0)

    def num_needed_new(self, count: int, shared: int, max_tokens: int) -> int:
        """Return the most free pages that a new sequence of ``count`` tokens takes before it has them all.

        Args:
            count: tokens of the sequence, at least 1.
            shared: how many of these are the first tokens of another sequence.
            max_tokens: the most tokens it is extended by at a time; a window frees pages in between.
        """
        if self.info.kind == "window":  # at most a window, a step and one partial page
            count = min(count, self.info.window + self.info.rewind + max_tokens + self.info.page_size)
            shared = 0
        return self._num_pages(count) - (self._num_shared(shared) if self.info.shares else 0)

    def check_room(self, growth: Iterable[tuple[SeqId, int]]) -> None:
        """Check that sequences can be extended, one after the other; change nothing.

        Args:
            growth: distinct sequences, each with its number of new tokens. Pages freed by one serve those after it.

        Raises:
            OutOfPages: if one of them would find too few free pages.
        """
        free, refs = self.num_free, ChainMap({}, self._refs)
        for seq, count in growth:
            holding = self._holdings[seq]
            if holding.length + count <= holding.room:
                continue
            if (needed := self._weigh(holding, count, refs)) > free:
                raise OutOfPages(needed, free)
            free -= needed
            left = holding.pages[: self._num_forgettable(holding)]
            for page in left + (holding.pages[-1:] if count and self._has_shared_tail(holding, refs) else ()):
                refs[page] -= 1

    def extend(self, seq: SeqId, count: int) -> list[Copy]:
        """Allocate pages for ``count`` more tokens; return the copies to make before the tokens are written.

        Raises:
            OutOfPages: if there are too few free pages; nothing has changed then.
        """
        holding = self._holdings[seq]
        if holding.length + count <= holding.room:
            holding.length += count
            return []
        if (needed := self.num_needed(seq, count)) > self.num_free:
            raise OutOfPages(needed, self.num_free)
        self._forget(holding)
        copies = self._unshare_tail(holding) if count else []
        holding.length += count
        if num_missing := self._num_missing(holding):
            holding.pages += tuple([self._take() for _ in range(num_missing)])
        if count:  # the last page is not shared now and cannot become shared while it is not full
            holding.room = self._find_room(holding)
        return copies

    def fork(self, src: SeqId, dst: SeqId, length: int) -> list[Copy]:
        """Open ``dst`` as the first ``length`` tokens of ``src``: full pages are shared, a partial last one is copied.

        If `PoolInfo.shares` is false, every page is copied.

        Raises:
            KeyError: if ``src`` is not open, or ``dst`` is.
            ValueError: if ``src`` cannot be rewound to ``length``; see `can_rewind`.
            OutOfPages: if there are too few pages for the copies; nothing has changed then.
        """
        source = self._holdings[src]
        self._check_new(dst)
        self._check_rewind(src, length)
        pages = source.pages[: self._num_pages(length) - source.first]
        if (needed := self.num_needed_fork(src, length)) > self.num_free:
            raise OutOfPages(needed, self.num_free)
        num_shared = len(pages) - needed
        for page in pages[:num_shared]:
            self._refs[page] += 1
        fresh = tuple([self._take() for _ in range(needed)])
        self._holdings[dst] = Holding(length, source.first, pages[:num_shared] + fresh)
        slots = [self.info.page_size] * needed
        if slots and self._num_slots_in_tail(length):
            slots[-1] = self._num_slots_in_tail(length)
        return [Copy(*copy) for copy in zip(pages[num_shared:], fresh, slots, strict=True)]

    def truncate(self, seq: SeqId, length: int) -> None:
        """Remove the tokens from ``length`` on.

        Raises:
            KeyError: if it is not open.
            ValueError: if the sequence cannot be rewound to ``length``; see `can_rewind`.
        """
        self._check_rewind(seq, length)
        holding = self._holdings[seq]
        keep = max(0, self._num_pages(length) - holding.first)
        self._release(holding.pages[keep:])
        holding.pages = holding.pages[:keep]
        holding.length, holding.room = length, 0

    def drop(self, seq: SeqId) -> None:
        """Close a sequence and release its pages.

        Raises:
            KeyError: if it is not open.
        """
        self._release(self._holdings.pop(seq).pages)

    def edit(self, edit: Edit) -> list[Copy]:
        """Apply an edit with `open`, `fork`, `truncate` or `drop`, and return the copies to make."""
        match edit:
            case Open(seq):
                self.open(seq)
            case Fork(src, dst, length):
                return self.fork(src, dst, length)
            case Truncate(seq, length):
                self.truncate(seq, length)
            case Drop(seq):
                self.drop(seq)
        return []

    def can_rewind(self, seq: SeqId, length: int) -> bool:
        """Return whether a fork or truncation at ``length`` is possible: always in a full pool, never in a state pool.

        A window pool can rewind by `PoolInfo.rewind` tokens, or less after an earlier truncation: freed pages stay
        freed. Every pool allows the sequence's own length.
        """
        holding = self._holdings[seq]
        if self.info.kind == "state":
            return length == holding.length
        return self._find_lowest(holding) <= length <= holding.length

    def save(self, seqs: Iterable[SeqId]) -> Mark:
        """Record the pages of sequences, before a step that may fail.

        Raises:
            KeyError: if one is not open.
        """
        return Mark({seq: self._holdings[seq].copy() for seq in seqs})

    def restore(self, mark: Mark) -> None:
        """Undo the `extend` calls on the sequences of ``mark`` since `save`.

        No other sequence may have changed since, and none may have been opened, forked, truncated or dropped. Data
        written to newly taken pages become meaningless; the caller restores data written to the page of a state. Takes
        time in the number of returned pages if a window or a copy released a page since.

        Raises:
            KeyError: if a sequence is no longer open; nothing has changed then.
        """
        now = {seq: self._holdings[seq] for seq in mark.holdings}
        was_released = False
        for holding in mark.holdings.values():
            for page in holding.pages:
                was_released |= page not in self._refs
                self._refs[page] = self._refs.get(page, 0) + 1
        # In the opposite order, so that the same step would take the same pages again.
        for holding in reversed(now.values()):
            self._release(reversed(holding.pages))
        self._holdings |= {seq: holding.copy() for seq, holding in mark.holdings.items()}
        if was_released:
            self._free.remove_all(self._refs)

    @contextmanager
    def pin(self, pages: Iterable[int]) -> Iterator[None]:
        """Keep pages from being allocated while a step that uses them is still running on a device."""
        pinned = list(pages)
        for page in pinned:
            self._pins[page] = self._pins.get(page, 0) + 1
        try:
            yield
        finally:
            for page in pinned:
                self._unpin(page)

    def check(self) -> None:
        """Check the invariants; takes time in the pool's size, for tests and idle times.

        Raises:
            AssertionError: if an invariant is violated.
        """
        holders: dict[int, int] = {}
        for holding in self._holdings.values():
            for page in holding.pages:
                holders[page] = holders.get(page, 0) + 1
        assert holders == self._refs, "references differ from holders"
        roomy = [holding for holding in self._holdings.values() if holding.room > holding.length]
        assert all(holding.room <= self._find_room(holding) for holding in roomy), "there is less room than noted"
        assert not any(self._has_shared_tail(holding, self._refs) for holding in roomy), "a shared page has room"
        limbo = {page for page in self._pins if page not in self._refs}
        parts = [*self._free, *self._refs, *limbo]
        assert sorted(parts) == list(range(self.info.num_pages)), "free and live pages are not all pages"

    def _num_pages(self, length: int) -> int:
        if self.info.kind == "state":
            return min(length, 1)
        return -(-length // self.info.page_size)

    def _num_shared(self, length: int) -> int:
        """Return the number of pages that a fork at ``length`` shares with its source, freed ones included."""
        if self.info.kind == "state":
            return 0
        return length // self.info.page_size

    def _num_slots_in_tail(self, length: int) -> int:
        """Return the used slots of a partial last page; the page of a state always counts as one."""
        return 1 if self.info.kind == "state" else length % self.info.page_size

    def _num_missing(self, holding: Holding) -> int:
        return max(0, self._num_pages(holding.length) - holding.first - len(holding.pages))

    def _weigh(self, holding: Holding, count: int, refs: Mapping[int, int]) -> int:
        """Return the pages that ``count`` more tokens take, minus those freed first, by reference counts ``refs``."""
        fresh = self._num_pages(holding.length + count) - holding.first - len(holding.pages)
        if count and self._has_shared_tail(holding, refs):
            fresh += 1
        forgotten = holding.pages[: self._num_forgettable(holding)]
        return fresh - sum(refs[page] == 1 and page not in self._pins for page in forgotten)

    def _has_shared_tail(self, holding: Holding, refs: Mapping[int, int]) -> bool:
        """Return whether the next token goes into a shared page, which happens only after a truncation."""
        return holding.length % self.info.page_size != 0 and refs[holding.pages[-1]] > 1

    def _unshare_tail(self, holding: Holding) -> list[Copy]:
        if not self._has_shared_tail(holding, self._refs):
            return []
        old, new = holding.pages[-1], self._take()
        self._release([old])
        holding.pages = (*holding.pages[:-1], new)
        return [Copy(old, new, self._num_slots_in_tail(holding.length))]

    def _find_room(self, holding: Holding) -> int:
        """Return the length up to which the current pages suffice and none is freed."""
        if self.info.kind == "state":
            return UNBOUNDED
        stop = (holding.first + len(holding.pages)) * self.info.page_size
        if self.info.kind != "window":
            return stop
        seen = self.info.window + self.info.rewind - 2
        return min(stop, (holding.first + 1) * self.info.page_size + seen)

    def _find_lowest(self, holding: Holding) -> int:
        """Return the smallest length to rewind to: the next token must not attend to freed pages."""
        if self.info.kind != "window":
            return 0
        seen = holding.first * self.info.page_size + self.info.window - 1 if holding.first else 0
        return max(0, holding.length - self.info.rewind, seen)

    def _num_forgettable(self, holding: Holding) -> int:
        if self.info.kind != "window":
            return 0
        horizon = holding.length - self.info.window - self.info.rewind + 1
        return max(0, min(horizon // self.info.page_size - holding.first, len(holding.pages)))

    def _forget(self, holding: Holding) -> None:
        if num := self._num_forgettable(holding):
            self._release(holding.pages[:num])
            holding.pages = holding.pages[num:]
            holding.first += num

    def _take(self) -> int:
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._refs[page] -= 1
            if self._refs[page] == 0:
                del self._refs[page]
                if page not in self._pins:
                    self._free.append(page)

    def _unpin(self, page: int) -> None:
        self._pins[page] -= 1
        if self._pins[page] == 0:
            del self._pins[page]
            if page not in self._refs:
                self._free.append(page)

    def _check_new(self, seq: SeqId) -> None:
        if seq in self._holdings:
            message = f"sequence {seq} is open already"
            raise KeyError(message)

    def _check_rewind(self, seq: SeqId, length: int) -> None:
        if not self.can_rewind(seq, length):
            message = f"a {self.info.kind} pool cannot rewind sequence {seq} of {self.length(seq)} tokens to {length}"
            raise ValueError(message)
