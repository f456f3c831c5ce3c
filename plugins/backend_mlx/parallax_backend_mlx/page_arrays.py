"""The arrays behind the page pools: keys and values in pages, states in slots.

MLX changes an array in place only if nothing else refers to it when the change is computed; otherwise it copies all of
it. So there is one reference to each of these arrays, and a step costs the same whatever the size of the pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from parallax_backend_mlx.cache_layout import Layout, Leaf, Part
from parallax_backend_mlx.results import Copies
from parallax_backend_mlx.runtime import mx
from parallax_core.api import Copy, PoolInfo

FIRST_PAGES = 16
"""Pages allocated at first; doubled when used up, since few stages ever use all pages."""


class PageArrays:
    """The cache of one layer in the pages of one pool.

    Page ``i`` lies at ``i + 1``: what is in front of all takes what nobody will read, the padding of a rectangle.
    Keys and values have the shape [pages * heads * page_size, width]: a page is one piece, and so is each head of it.
    """

    def __init__(self, leaf: Leaf, pool: int, page_size: int) -> None:
        self.leaf = leaf
        self.pool = pool
        self.page_size = 1 if leaf.kind == "state" else page_size
        self.arrays = [self._make_pages(part, 1) for part in leaf.parts]

    def grow(self, num_pages: int) -> None:
        """Make room for pages ``range(num_pages)``, an array at a time."""
        for index, part in enumerate(self.leaf.parts):
            old = self.arrays[index]
            missing = num_pages + 1 - self._count_pages(part, old)
            if missing > 0:
                grown = mx.concatenate([old, self._make_pages(part, missing)])
                mx.eval(grown)
                self.arrays[index] = grown

    def copy_pages(self, sources: mx.array, targets: mx.array) -> None:
        """Copy whole pages; what is beyond the slots in use is never read. Not evaluated."""
        for index, part in enumerate(self.leaf.parts):
            array = self.arrays[index]
            shape, num_pages = array.shape, self._count_pages(part, array)
            pages = array.reshape(num_pages, -1)
            pages[targets] = pages[sources]
            self.arrays[index] = pages.reshape(shape)

    def clean(self) -> None:
        """Put zeros where there are no finite numbers, an array at a time.

        What lies in a page that nobody reads, or beyond the end of a sequence, has a weight of zero in attention; and
        zero times NaN is NaN.
        """
        for index, array in enumerate(self.arrays):
            if not mx.all(mx.isfinite(array)).item():
                self.arrays[index] = mx.where(mx.isfinite(array), array, mx.zeros((), array.dtype))
                mx.eval(self.arrays[index])

    def _rows_of(self, part: Part) -> int:
        return 1 if self.leaf.kind == "state" else part.shape[0] * self.page_size

    def _count_pages(self, part: Part, array: mx.array) -> int:
        return int(array.shape[0]) // self._rows_of(part)

    def _make_pages(self, part: Part, num: int) -> mx.array:
        shape = part.shape if self.leaf.kind == "state" else part.shape[1:]
        return mx.zeros((num * self._rows_of(part), *shape), dtype=part.dtype)


class Store:
    """The banks of all layers of a stage. Belongs to the thread that made it."""

    def __init__(self, layout: Layout, infos: Sequence[PoolInfo]) -> None:
        self._infos = infos
        self._num_pages = [0] * len(infos)
        pools = {(info.kind, info.window): index for index, info in enumerate(infos)}
        self.banks = {
            entry: tuple(PageArrays(leaf, pools[leaf.pool], infos[pools[leaf.pool]].page_size) for leaf in leaves)
            for entry, leaves in layout.leaves.items()
        }
        mx.eval(self.list_arrays())

    def list_banks(self) -> list[PageArrays]:
        """Return every bank."""
        return [bank for banks in self.banks.values() for bank in banks]

    def list_arrays(self) -> list[mx.array]:
        """Return the arrays of every bank."""
        return [array for bank in self.list_banks() for array in bank.arrays]

    def reserve(self, pool: int, pages: Iterable[int]) -> None:
        """Have memory for ``pages`` of a pool."""
        needed = max(pages, default=-1) + 1
        if needed <= self._num_pages[pool]:
            return
        doubled = max(FIRST_PAGES, 2 ** math.ceil(math.log2(needed)))
        num_pages = min(doubled, self._infos[pool].num_pages)
        for bank in self.list_banks():
            if bank.pool == pool:
                bank.grow(num_pages)
        self._num_pages[pool] = num_pages

    def copy(self, copies: Copies) -> None:
        """Make ``copies``, in order; evaluate `list_arrays` after it."""
        for pool, part in enumerate(copies):
            if part:
                self.reserve(pool, [copy.dst for copy in part])
                self._copy_pages(pool, part)

    def clean(self) -> None:
        """Leave finite numbers only in keys and values."""
        for bank in self.list_banks():
            if bank.leaf.kind != "state":
                bank.clean()

    def _copy_pages(self, pool: int, copies: Sequence[Copy]) -> None:
        sources = mx.array([copy.src + 1 for copy in copies], dtype=mx.uint32)
        targets = mx.array([copy.dst + 1 for copy in copies], dtype=mx.uint32)
        for bank in self.list_banks():
            if bank.pool == pool:
                bank.copy_pages(sources, targets)
