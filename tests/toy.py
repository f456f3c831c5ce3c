"""A model of integers behind the stage contract: the next token is a function of all tokens before it.

It checks what a head may rely on and must honour, so that a test of the head is a test of the contract.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from parallax_core.api import (
    Drawn,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Open,
    PoolInfo,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
    Truncate,
)

VOCAB = 97


def next_token(tokens: Sequence[int], vocab: int = VOCAB) -> int:
    """Return the token after ``tokens``: any change of any of them changes it, with few exceptions."""
    state = 17
    for position, token in enumerate(tokens):
        state = (state * 31 + (token + 1) * (position + 3)) % 1_000_003
    return state % vocab


def continuation(prompt: Sequence[int], length: int, vocab: int = VOCAB) -> list[int]:
    """Return the ``length`` tokens that follow ``prompt``, computed alone and at once."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, vocab))
    return tokens[len(prompt) :]


class Ready:
    """A step's result that is there already."""

    def __init__(self, result: StageResult) -> None:
        self._result = result

    def wait(self) -> StageResult:
        return self._result


class ToyStage:
    """Holds the tokens of each sequence; one thread only, as the contract says."""

    def __init__(
        self,
        *,
        num_pages: int = 8,
        page_size: int = 4,
        max_batch_tokens: int = 8,
        context: int = 64,
        vocab: int = VOCAB,
    ) -> None:
        self.info = StageInfo(
            layers=LayerRange(0, 1),
            num_layers=1,
            vocab_size=vocab,
            context_length=context,
            max_batch_tokens=max_batch_tokens,
            pools=(PoolInfo(kind="full", page_size=page_size, num_pages=num_pages),),
            device="toy",
            dtype="int",
            weight_bytes=0,
            weights_version="1",
        )
        self.tokens: dict[SeqId, list[int]] = {}
        self.batches: list[StageBatch] = []
        self.closed = False
        self.before_open: Callable[[SequenceSpec], None] = lambda spec: None
        self.before_step: Callable[[StageBatch], None] = lambda batch: None
        self._thread: int | None = None

    @property
    def num_used_pages(self) -> int:
        size = self.info.pools[0].page_size
        return sum(-(-len(tokens) // size) for tokens in self.tokens.values())

    def edit(self, edits: Sequence[Edit]) -> None:
        self._check_thread()
        for edit in edits:
            match edit:
                case Open(seq, spec):
                    self.before_open(spec)
                    assert seq not in self.tokens
                    self.tokens[seq] = []
                case Fork(src, dst, length):
                    self.tokens[dst] = self.tokens[src][:length]
                case Truncate(seq, length):
                    del self.tokens[seq][length:]
                case Drop(seq):
                    del self.tokens[seq]

    def step(self, batch: StageBatch) -> Ready:
        self._check_thread()
        assert sum(len(row.tokens) for row in batch.rows) <= self.info.max_batch_tokens
        assert len({row.seq for row in batch.rows}) == len(batch.rows)
        assert all(row.tokens and row.start == len(self.tokens[row.seq]) for row in batch.rows)
        self.batches.append(batch)
        self.before_step(batch)
        drawn: list[Drawn] = []
        for row in batch.rows:
            self.tokens[row.seq] += row.tokens
            history = self.tokens[row.seq]
            for output in row.outputs:
                token = next_token(history[: row.start + output.offset + 1], self.info.vocab_size)
                drawn.append(Drawn((token,)))
        assert self.num_used_pages <= self.info.pools[0].num_pages
        return Ready(StageResult(tuple(drawn)))

    def close(self) -> None:
        self.closed = True

    def _check_thread(self) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident()
