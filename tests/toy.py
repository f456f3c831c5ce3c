"""A model of integers behind the stage contract: the next token is a function of what the stage remembers.

What it remembers lies in pages, where a real backend would put keys and values, and is read back through them, so that
a page that is lost, shared wrongly or reused too early changes the tokens. It also checks what a head must honour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from parallax_core.api import (
    Copy,
    Drawn,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Open,
    PagePool,
    PoolInfo,
    Row,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
    Truncate,
)

VOCAB = 97
PRIME = 1_000_003


def mix(state: int, token: int, position: int) -> int:
    """Return the next state of a recurrence in which every token counts, and where it stands."""
    return (state * 31 + (token + 1) * (position + 3)) % PRIME


def fold(tokens: Sequence[int], first: int = 0) -> int:
    """Return the state after ``tokens``, the first of which stands at position ``first``."""
    state = 17
    for position, token in enumerate(tokens, first):
        state = mix(state, token, position)
    return state


def next_token(tokens: Sequence[int], vocab: int = VOCAB, window: int = 0) -> int:
    """Return the token after ``tokens``: of all of them, or with a window also of the last ones by themselves."""
    begin = max(0, len(tokens) - window)
    return (fold(tokens) + (fold(tokens[begin:], begin) if window else 0)) % vocab


def continuation(prompt: Sequence[int], length: int, vocab: int = VOCAB, window: int = 0) -> list[int]:
    """Return the ``length`` tokens that follow ``prompt``, computed alone and at once."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, vocab, window))
    return tokens[len(prompt) :]


class Ready:
    """A step's result that is there already."""

    def __init__(self, result: StageResult) -> None:
        self._result = result

    def wait(self) -> StageResult:
        return self._result


class Memory:
    """One pool with what is stored in its pages."""

    def __init__(self, info: PoolInfo) -> None:
        self.pool = PagePool(info)
        self._slots: dict[tuple[int, int], int] = {}

    def edit(self, edit: Edit) -> None:
        self._copy(self.pool.edit(edit))

    def write(self, row: Row) -> None:
        before = self._read_state(row.seq) if self.pool.info.kind == "state" and row.start else 17
        self._copy(self.pool.extend(row.seq, len(row.tokens)))
        for position, token in enumerate(row.tokens, row.start):
            before = mix(before, token, position)
            self._slots[self._locate(row.seq, position)] = before if self.pool.info.kind == "state" else token

    def recall(self, seq: SeqId, stop: int) -> int:
        """Return what the pool contributes to the token at position ``stop``."""
        info = self.pool.info
        if info.kind == "state":
            return self._read_state(seq)
        begin = max(0, stop - info.window) if info.kind == "window" else 0
        return fold([self._slots[self._locate(seq, position)] for position in range(begin, stop)], begin)

    def _read_state(self, seq: SeqId) -> int:
        return self._slots[self._locate(seq, 0)]

    def _locate(self, seq: SeqId, position: int) -> tuple[int, int]:
        first, pages = self.pool.pages(seq)
        if self.pool.info.kind == "state":
            return pages[0], 0
        index, slot = divmod(position, self.pool.info.page_size)
        assert index >= first, "a forgotten position is read"
        return pages[index - first], slot

    def _copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            for slot in range(copy.num_slots):
                self._slots[copy.dst, slot] = self._slots[copy.src, slot]


class ToyStage:
    """Remembers the tokens of each sequence in every pool; one thread only, as the contract says.

    Its next token is that of `next_token`: full pools and states give the fold of all tokens (the first pool counts), a
    window adds its own.
    """

    def __init__(  # noqa: PLR0913 -- each a knob of some test
        self,
        *,
        num_pages: int = 8,
        page_size: int = 4,
        max_batch_tokens: int = 8,
        context: int = 64,
        vocab: int = VOCAB,
        pools: tuple[PoolInfo, ...] = (),
    ) -> None:
        self.info = StageInfo(
            layers=LayerRange(0, 1),
            num_layers=1,
            vocab_size=vocab,
            context_length=context,
            max_batch_tokens=max_batch_tokens,
            pools=pools or (PoolInfo(kind="full", page_size=page_size, num_pages=num_pages),),
            device="toy",
            dtype="int",
            weight_bytes=0,
            weights_version="1",
        )
        self._memories = [Memory(info) for info in self.info.pools]
        self.tokens: dict[SeqId, int] = {}
        self.batches: list[StageBatch] = []
        self.forks: list[Fork] = []
        self.closed = False
        self.before_open: Callable[[SequenceSpec], None] = lambda spec: None
        self.before_step: Callable[[StageBatch], None] = lambda batch: None
        self._thread: int | None = None

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(memory.pool.num_free for memory in self._memories)

    def edit(self, edits: Sequence[Edit]) -> None:
        self._check_thread()
        for edit in edits:
            if isinstance(edit, Open | Fork) and edit.spec:
                self.before_open(edit.spec)
            for memory in self._memories:
                memory.edit(edit)
            match edit:
                case Open(seq):
                    self.tokens[seq] = 0
                case Fork(_, dst, length):
                    self.forks.append(edit)
                    self.tokens[dst] = length
                case Truncate(seq, length):
                    self.tokens[seq] = length
                case Drop(seq):
                    del self.tokens[seq]

    def step(self, batch: StageBatch) -> Ready:
        self._check_thread()
        assert sum(len(row.tokens) for row in batch.rows) <= self.info.max_batch_tokens
        assert len({row.seq for row in batch.rows}) == len(batch.rows)
        assert all(row.tokens and row.start == self.tokens[row.seq] for row in batch.rows)
        self.batches.append(batch)
        self.before_step(batch)
        drawn: list[Drawn] = []
        for row in batch.rows:
            for memory in self._memories:
                memory.write(row)
            self.tokens[row.seq] += len(row.tokens)
            assert all(output.offset == len(row.tokens) - 1 for output in row.outputs)
            drawn += [Drawn((self._next(row.seq),)) for _ in row.outputs]
        return Ready(StageResult(tuple(drawn), free=self.free))

    def close(self) -> None:
        self.closed = True

    def _next(self, seq: SeqId) -> int:
        found = [memory.recall(seq, self.tokens[seq]) for memory in self._memories]
        windows = [
            value for memory, value in zip(self._memories, found, strict=True) if memory.pool.info.kind == "window"
        ]
        return (found[0] + sum(windows)) % self.info.vocab_size

    def _check_thread(self) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident()
