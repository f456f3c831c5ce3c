"""Random edits and steps: a pool's pages hold what every sequence should remember."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parallax_core.base.errors import OutOfPages
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import PoolInfo
from parallax_core.pages.pool import Copy, PagePool


def find_shortage(grow: Callable[[], object]) -> tuple[int, int] | None:
    """Return the pages needed and those that were free where there are too few."""
    try:
        grow()
    except OutOfPages as error:
        return error.needed, error.free
    return None


class Memory(RuleBasedStateMachine):
    """Random edits and steps against what every sequence should remember, over the memory a stage would have."""

    @initialize(
        kind=st.sampled_from(["full", "window", "state"]),
        page_size=st.integers(1, 4),
        window=st.integers(1, 6),
        rewind=st.integers(0, 3),
        shares=st.booleans(),
    )
    def begin(self, kind: str, page_size: int, window: int, rewind: int, shares: bool) -> None:
        self.info = PoolInfo(
            kind=kind,  # type: ignore[arg-type]
            page_size=1 if kind == "state" else page_size,
            num_pages=12,
            window=window if kind == "window" else 0,
            rewind=rewind if kind == "window" else 0,
            shares=shares,
        )
        self.pool = PagePool(self.info)
        self.memory: dict[int, dict[int, object]] = {}
        self.wanted: dict[SeqId, list[int]] = {}
        self.names = iter(range(10**6))
        self.tokens = iter(range(10**9))

    def apply(self, copies: list[Copy]) -> None:
        for copy in copies:
            self.memory[copy.dst] = {slot: self.memory[copy.src][slot] for slot in range(copy.num_slots)}

    def write(self, seq: SeqId, start: int, tokens: list[int]) -> None:
        first, pages = self.pool.pages(seq)
        holders = [page for other in self.wanted for page in self.pool.pages(other)[1]]
        for position, token in enumerate(tokens, start):
            state = self.info.kind == "state"
            index, slot = (0, 0) if state else divmod(position, self.info.page_size)
            assert index >= first
            page = pages[index - first]
            assert holders.count(page) == 1, "a shared page is written"
            content = tuple(self.wanted[seq][: position + 1]) if state else token
            self.memory.setdefault(page, {})[slot] = content

    @rule()
    def open(self) -> None:
        seq = SeqId(next(self.names))
        self.pool.open(seq)
        self.wanted[seq] = []

    @precondition(lambda self: self.wanted)
    @rule(pick=st.integers(0, 99), count=st.integers(0, 9))
    def step(self, pick: int, count: int) -> None:
        seq = list(self.wanted)[pick % len(self.wanted)]
        start = len(self.wanted[seq])
        needed, free = self.pool.num_needed(seq, count), self.pool.num_free
        try:
            copies = self.pool.extend(seq, count)
        except OutOfPages:
            assert needed > free
            return
        assert self.pool.num_free == free - needed
        tokens = [next(self.tokens) for _ in range(count)]
        self.wanted[seq] += tokens
        self.apply(copies)
        self.write(seq, start, tokens)
        if self.info.kind == "window":  # the first page there is not wholly below what may still be needed
            first, _ = self.pool.pages(seq)
            assert (first + 1) * self.info.page_size > start - self.info.window - self.info.rewind + 1

    @precondition(lambda self: self.wanted)
    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def fail(self, counts: list[int]) -> None:
        """A step of several sequences fails: it is as if it had not been, and the same step takes the same pages."""
        before, marks = self.describe(), self.pool.save(self.wanted)
        tries = [self.attempt(counts)]
        self.pool.restore(marks)
        assert self.describe() == before
        self.pool.check()
        tries.append(self.attempt(counts))
        self.pool.restore(marks)
        assert tries[0] == tries[1]

    def describe(self) -> list[object]:
        return [self.pool.num_free, *((seq, self.pool.length(seq), self.pool.pages(seq)) for seq in self.wanted)]

    def attempt(self, counts: list[int]) -> list[object]:
        """Grow sequences as long as there are pages, and leave rubbish in what they took."""
        for seq, count in zip(self.wanted, counts, strict=False):
            try:
                copies = self.pool.extend(seq, count)
            except OutOfPages:
                break
            self.apply(copies)
            if self.info.kind != "state":
                self.write(seq, len(self.wanted[seq]), [-1] * count)
        return self.describe()

    @precondition(lambda self: self.wanted)
    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def foretell(self, counts: list[int]) -> None:
        """Whether there is room for several sequences is known before any of them grows."""
        growth = list(zip(self.wanted, counts, strict=False))
        before, trial = self.describe(), deepcopy(self.pool)
        assert find_shortage(lambda: self.pool.check_room(growth)) == find_shortage(
            lambda: [trial.extend(seq, count) for seq, count in growth]
        )
        assert self.describe() == before

    @precondition(lambda self: self.wanted)
    @rule(pick=st.integers(0, 99), back=st.integers(0, 9))
    def fork(self, pick: int, back: int) -> None:
        seq, dst = list(self.wanted)[pick % len(self.wanted)], SeqId(next(self.names))
        length = max(0, len(self.wanted[seq]) - back)
        if not self.pool.can_rewind(seq, length):
            return
        needed, free = self.pool.num_needed_fork(seq, length), self.pool.num_free
        try:
            copies = self.pool.fork(seq, dst, length)
        except OutOfPages:
            assert needed > free
            return
        assert self.pool.num_free == free - needed
        self.wanted[dst] = self.wanted[seq][:length]
        self.apply(copies)

    @precondition(lambda self: self.wanted)
    @rule(pick=st.integers(0, 99), back=st.integers(0, 9))
    def truncate(self, pick: int, back: int) -> None:
        seq = list(self.wanted)[pick % len(self.wanted)]
        length = max(0, len(self.wanted[seq]) - back)
        if self.pool.can_rewind(seq, length):
            self.pool.truncate(seq, length)
            del self.wanted[seq][length:]

    @precondition(lambda self: self.wanted)
    @rule(pick=st.integers(0, 99))
    def drop(self, pick: int) -> None:
        seq = list(self.wanted)[pick % len(self.wanted)]
        self.pool.drop(seq)
        del self.wanted[seq]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        for seq, tokens in self.wanted.items():
            self.sees(seq, tokens)

    def sees(self, seq: SeqId, tokens: list[int]) -> None:
        """The next token sees the whole context, or the last ``window - 1`` tokens of it."""
        first, pages = self.pool.pages(seq)
        if self.info.kind == "state":
            assert not tokens or self.memory[pages[0]][0] == tuple(tokens)
            return
        begin = max(0, len(tokens) - self.info.window + 1) if self.info.kind == "window" else 0
        for position in range(begin, len(tokens)):
            index, slot = divmod(position, self.info.page_size)
            assert self.memory[pages[index - first]][slot] == tokens[position]


Memory.TestCase.settings = settings(stateful_step_count=50)


TestMemory = Memory.TestCase
