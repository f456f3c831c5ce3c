"""The arrays behind the page pools: keys and values in pages, states in slots.

MLX changes an array in place only if there is no other reference to it when the change is computed; otherwise it copies
the array. So there is one reference to each of these arrays, and the cost of a step does not depend on the pool's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from parallax_backend_mlx.cache_layout import Layout, Leaf, Part
from parallax_backend_mlx.results import Copies
from parallax_backend_mlx.runtime import mx
from parallax_core.api import Copy, PoolInfo

FIRST_PAGES = 16
"""Pages allocated at first; doubled when used up, since few stages use all their pages."""


class PageArrays:
    """The cache of one layer in the pages of one pool.

    Page ``i`` is at index ``i + 1``; index 0 takes writes that are never read, those of padding in a rectangle. Keys
    and values have the shape [pages * heads * page_size, width]: a page is contiguous, and so is each head of a page.
    """

    def __init__(self, leaf: Leaf, pool: int, page_size: int) -> None:
        self.leaf = leaf
        self.pool = pool
        self.page_size = 1 if leaf.kind == "state" else page_size
        self.arrays = [self._make_pages(part, 1) for part in leaf.parts]

    def grow(self, num_pages: int) -> None:
        """Allocate pages ``range(num_pages)``, one array at a time."""
        for index, part in enumerate(self.leaf.parts):
            old = self.arrays[index]
            missing = num_pages + 1 - self._count_pages(part, old)
            if missing > 0:
                grown = mx.concatenate([old, self._make_pages(part, missing)])
                mx.eval(grown)
                self.arrays[index] = grown

    def copy_pages(self, sources: mx.array, targets: mx.array) -> None:
        """Copy whole pages; slots that are not in use are never read. Not evaluated."""
        for index, part in enumerate(self.leaf.parts):
            array = self.arrays[index]
            shape, num_pages = array.shape, self._count_pages(part, array)
            pages = array.reshape(num_pages, -1)
            pages[targets] = pages[sources]
            self.arrays[index] = pages.reshape(shape)

    def clean(self) -> None:
        """Replace numbers that are not finite by zeros, one array at a time.

        Slots of padding, or after the end of a sequence, have weight zero in attention, and zero times NaN is NaN.
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
    """The page arrays of all layers of a stage. Belongs to the thread that made it."""

    def __init__(self, layout: Layout, infos: Sequence[PoolInfo]) -> None:
        self._infos = infos
        self._num_pages = [0] * len(infos)
        pools = {(info.kind, info.window): index for index, info in enumerate(infos)}
        self.layer_caches = {
            entry: tuple(PageArrays(leaf, pools[leaf.pool], infos[pools[leaf.pool]].page_size) for leaf in leaves)
            for entry, leaves in layout.leaves.items()
        }
        mx.eval(self.list_arrays())

    def list_layer_caches(self) -> list[PageArrays]:
        """Return the page arrays of every layer."""
        return [layer_cache for each in self.layer_caches.values() for layer_cache in each]

    def list_arrays(self) -> list[mx.array]:
        """Return the arrays of every layer."""
        return [array for layer_cache in self.list_layer_caches() for array in layer_cache.arrays]

    def reserve(self, pool: int, pages: Iterable[int]) -> None:
        """Allocate memory for ``pages`` of a pool."""
        needed = max(pages, default=-1) + 1
        if needed <= self._num_pages[pool]:
            return
        doubled = max(FIRST_PAGES, 2 ** math.ceil(math.log2(needed)))
        num_pages = min(doubled, self._infos[pool].num_pages)
        for layer_cache in self.list_layer_caches():
            if layer_cache.pool == pool:
                layer_cache.grow(num_pages)
        self._num_pages[pool] = num_pages

    def copy(self, copies: Copies) -> None:
        """Make ``copies``, in order; evaluate `list_arrays` after it."""
        for pool, part in enumerate(copies):
            if part:
                self.reserve(pool, [copy.dst for copy in part])
                self._copy_pages(pool, part)

    def clean(self) -> None:
        """Replace numbers in keys and values that are not finite by zeros."""
        for layer_cache in self.list_layer_caches():
            if layer_cache.leaf.kind != "state":
                layer_cache.clean()

    def _copy_pages(self, pool: int, copies: Sequence[Copy]) -> None:
        sources = mx.array([copy.src + 1 for copy in copies], dtype=mx.uint32)
        targets = mx.array([copy.dst + 1 for copy in copies], dtype=mx.uint32)
        for layer_cache in self.list_layer_caches():
            if layer_cache.pool == pool:
                layer_cache.copy_pages(sources, targets)
