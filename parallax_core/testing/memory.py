"""A pool of pages with integers in its slots in place of keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Copy, Drop, Edit, Fork, OutOfPages, PagePool, PoolInfo, Row, SeqId


class Memory:
    """One pool, and for each of its layers a cell for every slot; what is read is read through the pages.

    A page that is handed out holds poison until it is written, so that nothing an earlier holder left is of use.
    """

    pool_type = PagePool

    def __init__(self, info: PoolInfo, num_layers: int) -> None:
        self.pool = self.pool_type(info)
        self._size = 1 if info.kind == "state" else info.page_size
        self._cells = [[0] * (info.num_pages * self._size) for _ in range(num_layers)]
        self._num_poisoned = 0

    def edit(self, edit: Edit) -> None:
        """Apply an edit to the pool, and what it asks for to the cells."""
        self.apply_copies(self.pool.edit(edit))

    def extend(self, row: Row) -> None:
        """Take the pages a row needs."""
        before = set(self._list_places(row.seq))
        copies = self.pool.extend(row.seq, len(row.tokens))
        self._poison([page for index, page in self._list_places(row.seq) if (index, page) not in before])
        self.apply_copies(copies)

    def write(self, layer: int, seq: SeqId, start: int, notes: Sequence[int]) -> None:
        """Store notes of a sequence from position ``start`` on; ``layer`` counts those of this pool."""
        cells = self._cells[layer]
        for position, note in enumerate(notes, start):
            cells[self._locate(seq, position)] = note

    def read(self, layer: int, seq: SeqId, start: int, stop: int) -> list[int]:
        """Return the notes of positions ``start`` to ``stop``."""
        first, pages = self.pool.pages(seq)
        begin = start // self._size
        assert begin >= first or start == stop, "a position the window has forgotten is read"
        found: list[int] = []
        for page in pages[begin - first : -(-stop // self._size) - first]:
            found += self._cells[layer][page * self._size : (page + 1) * self._size]
        return found[start - begin * self._size : stop - begin * self._size]

    def apply_copies(self, copies: Sequence[Copy]) -> None:
        """Make the copies a pool asks for, into pages it has just handed out."""
        self._poison([copy.dst for copy in copies])
        for copy in copies:
            for cells in self._cells:
                source = copy.src * self._size
                target = copy.dst * self._size
                cells[target : target + copy.num_slots] = cells[source : source + copy.num_slots]

    def _locate(self, seq: SeqId, position: int) -> int:
        first, pages = self.pool.pages(seq)
        index, slot = divmod(position, self._size)
        return pages[index - first] * self._size + slot

    def _list_places(self, seq: SeqId) -> list[tuple[int, int]]:
        first, pages = self.pool.pages(seq)
        return list(enumerate(pages, first))

    def _poison(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._num_poisoned += 1
            for cells in self._cells:
                cells[page * self._size : (page + 1) * self._size] = [-self._num_poisoned] * self._size


def edit_memories(memories: Sequence[Memory], edit: Edit) -> None:
    """Apply an edit to every pool, or, if one of them has no page for a fork, to none."""
    done: list[Memory] = []
    try:
        for memory in memories:
            memory.edit(edit)
            done.append(memory)
    except OutOfPages:
        assert isinstance(edit, Fork)
        for memory in done:
            memory.edit(Drop(edit.dst))
        raise
