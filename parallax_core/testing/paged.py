"""The layers of the toy model over pages, in place of attention over a KV cache."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice

from parallax_core.api import LayerRange, PoolInfo, Row, StageBatch, Tensor
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.arithmetic import PRIME, embed_token, finish_token, gather_notes, mix, note_token
from parallax_core.testing.memory import Memory

States = list[list[int]]
"""Hidden states: for each row, one for each of its tokens."""


class PagedLayers:
    """Some layers of a toy with what they remember, one pool for each kind among them."""

    memory_type = Memory

    def __init__(self, kinds: Sequence[PoolKind], layers: LayerRange, pools: Sequence[PoolInfo]) -> None:
        self._kinds = {layer: kinds[layer] for layer in range(layers.start, layers.stop)}
        self.memories = [self.memory_type(pool, [*self._kinds.values()].count(pool.kind)) for pool in pools]
        self._memories = {memory.pool.info.kind: memory for memory in self.memories}

    def run(self, batch: StageBatch) -> States:
        """Take the pages the rows need, and return their hidden states after the last of the layers."""
        for memory in self.memories:
            for row in batch.rows:
                memory.extend(row)
        hidden = self.begin_rows(batch)
        seen = dict.fromkeys(self._memories, 0)
        for layer, kind in self._kinds.items():
            hidden = self.run_layer(layer, seen[kind], batch.rows, hidden)
            seen[kind] += 1
        return hidden

    def begin_rows(self, batch: StageBatch) -> States:
        """Return the hidden states before the first of the layers: embeddings, or what the stage before gave."""
        if not batch.hidden:
            return [
                [embed_token(*pair) for pair in zip(row.tokens, list_positions(row), strict=True)] for row in batch.rows
            ]
        states = iter(unpack_states(batch.hidden[0]))
        return [list(islice(states, len(row.tokens))) for row in batch.rows]

    def run_layer(self, layer: int, index: int, rows: Sequence[Row], hidden: States) -> States:
        """Return the hidden states after a layer, which is number ``index`` of its pool: all rows write, then read."""
        kind = self._kinds[layer]
        memory = self._memories[kind]
        notes = [
            [note_token(kind, layer, *pair) for pair in zip(states, list_positions(row), strict=True)]
            for row, states in zip(rows, hidden, strict=True)
        ]
        if kind == "state":
            gathered = [self.advance(memory, index, *pair) for pair in zip(rows, notes, strict=True)]
        else:
            for row, written in zip(rows, notes, strict=True):
                memory.write(index, row.seq, row.start, written)
            gathered = [self.prefix_index(memory, index, row) for row in rows]
        return [
            [finish_token(*pair) for pair in zip(states, found, strict=True)]
            for states, found in zip(hidden, gathered, strict=True)
        ]

    def advance(self, memory: Memory, index: int, row: Row, notes: Sequence[int]) -> list[int]:
        """Return the recurrent state after each token of a row, and keep the last."""
        before = memory.read(index, row.seq, 0, 1)[0] if row.start else 0
        gathered = list_sums(before, notes)
        memory.write(index, row.seq, 0, gathered[-1:])
        return gathered

    def prefix_index(self, memory: Memory, index: int, row: Row) -> list[int]:
        """Return what each token of a row gathers of those up to itself."""
        stop = row.start + len(row.tokens)
        if memory.pool.info.kind != "window":
            notes = memory.read(index, row.seq, 0, stop)
            return list_sums(gather_notes(notes[: row.start]), notes[row.start :])
        ends = range(row.start + 1, stop + 1)
        begins = [max(0, end - memory.pool.info.window) for end in ends]
        return [gather_notes(memory.read(index, row.seq, *span)) for span in zip(begins, ends, strict=True)]


def list_positions(row: Row) -> Sequence[int]:
    """Return the position of each token of a row."""
    return row.positions or range(row.start, row.start + len(row.tokens))


def list_sums(before: int, notes: Iterable[int]) -> list[int]:
    """Return what is gathered after each of ``notes``."""
    return list(accumulate(notes, mix, initial=before))[1:]


def pack_states(hidden: Iterable[int]) -> Tensor:
    """Return hidden states as an int64 tensor of shape [states, 1]."""
    states = list(hidden)
    return Tensor("int64", (len(states), 1), struct.pack(f"<{len(states)}q", *states))


def unpack_states(tensor: Tensor) -> tuple[int, ...]:
    """Return the hidden states in an int64 tensor of shape [states, 1]."""
    return struct.unpack(f"<{tensor.shape[0]}q", tensor.data)


def show_state(state: int) -> Tensor:
    """Return a hidden state as a float32 tensor of shape [1], between 0 and 1; the sum of several may be above."""
    return Tensor("float32", (1,), struct.pack("<f", state / PRIME))
