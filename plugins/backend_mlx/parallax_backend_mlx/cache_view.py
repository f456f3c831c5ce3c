"""Gives pages the interface of mlx-lm's caches, so that its model files run on them unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_backend_mlx.metal_kernel import Pages
from parallax_backend_mlx.page_arrays import PageArrays
from parallax_backend_mlx.page_index import SlotMapping
from parallax_backend_mlx.runtime import ArraysCache, mx

PARTS = ("keys", "values")


class PagedView:
    """The keys and values of one layer for the rows of one rectangle; takes the place of a `KVCache`.

    Writes are recorded in the arrays at once, and computed later. A failed step needs no undo except for the lengths of
    its sequences: it writes after their ends, and to no shared page.

    Args:
        layer_cache: the arrays of the layer.
        places: the pages of the rows.
        is_eager: make MLX compute up to the keys of this layer while Python prepares the next layers.
    """

    def __init__(self, layer_cache: PageArrays, places: SlotMapping, *, is_eager: bool = False) -> None:
        self._layer_cache = layer_cache
        self._places = places
        self._is_eager = is_eager
        self._changed: list[mx.array] = []
        self._new: tuple[mx.array, ...] = ()
        self.offset = places.offset
        self.keys: mx.array | None = None
        """All keys of the rows, shape [rows, heads, span, width]; None before the first. Model files may assign it."""
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the keys and values of new tokens; return them after all earlier ones, not evaluated.

        Args:
            keys: shape [rows, heads, columns, width].
            values: likewise; heads and width may differ.

        Returns:
            Both of shape [rows, heads, span, width]; `make_mask` gives the part that each row may see.
        """
        self._new = keys, values
        if self._is_eager:
            mx.async_eval(keys)  # type: ignore[no-untyped-call]
        arrays = self._layer_cache.arrays
        self._changed = [self._write(array, new) for array, new in zip(arrays, (keys, values), strict=True)]
        # With no other reference to the old arrays, MLX writes into them instead of copying them.
        arrays[:] = self._changed
        self.keys, self.values = (
            self._read(array, new) for array, new in zip(self._changed, (keys, values), strict=True)
        )
        self.offset = self.offset + self._places.columns
        return self.keys, self.values

    def check_new(self) -> mx.array | None:
        """Return which rows wrote finite numbers only, bool of shape [rows], not evaluated; None if none wrote."""
        if not self._new:
            return None
        keys, values = (mx.all(mx.isfinite(new), axis=(1, 2, 3)) for new in self._new)
        return keys & values

    def find_pages(self, mask: mx.array | str | None) -> Pages | None:
        """Return the pages of the keys and values that rows of one column see, or None if ``mask`` is unknown.

        Args:
            mask: the attention mask, as returned by `make_mask` of any view of the same places.
        """
        reach = self._places.find_reach(mask)
        if reach is None or self._places.columns != 1 or len(self._changed) != len(PARTS):
            return None
        keys, values = self._changed
        heads = self._layer_cache.leaf.parts[0].shape[0]
        table, bounds = self._places.pages, self._places.bounds(reach)
        return Pages(keys, values, table, bounds, heads, self._layer_cache.page_size)

    def keys_and_values(self) -> tuple[mx.array | None, mx.array | None]:
        """Return the result of the last `update_and_fetch`."""
        return self.keys, self.values

    def make_mask(
        self,
        num: int,
        return_array: bool = False,  # noqa: FBT001, FBT002  # the interface of mlx-lm
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """Return the mask for ``num`` columns, in the forms mlx-lm has for it; see `SlotMapping.mask`."""
        if num != self._places.columns:
            message = f"the model asks for a mask of {num} columns, and runs {self._places.columns}"
            raise ValueError(message)
        return self._places.mask(window_size, as_array=return_array)

    def size(self) -> int:
        """Return the number of keys of the longest row."""
        return self._places.span

    def empty(self) -> bool:
        """Whether no token has been written yet."""
        return self.keys is None

    def commit(self) -> list[mx.array]:
        """Release the fetched keys and values, and return the arrays of the layer for evaluation."""
        self._changed = []
        self._new = ()
        self.keys = self.values = None
        return self._layer_cache.arrays

    def _write(self, array: mx.array, new: mx.array) -> mx.array:
        changed = array[...]
        changed[self._places.slots(new.shape[1])] = new
        return changed

    def _read(self, array: mx.array, new: mx.array) -> mx.array:
        rows, heads, _, width = new.shape
        pages = array.reshape(-1, self._layer_cache.page_size * width)[self._places.table(heads)]
        return pages.reshape(rows, heads, -1, width)[:, :, : self._places.span]


class SlotView(ArraysCache):
    """The states of one layer for the rows of one rectangle; the sequences are all new, or none is."""

    def __init__(self, layer_cache: PageArrays, slots: Sequence[int], *, is_new: bool) -> None:
        super().__init__(len(layer_cache.arrays))
        self._layer_cache = layer_cache
        self._slots = mx.array([slot + 1 for slot in slots], dtype=mx.uint32)
        self.saved: list[mx.array] = [] if is_new else [array[self._slots] for array in layer_cache.arrays]
        """The states before the step, not evaluated."""
        if not is_new:
            for index, state in enumerate(self.saved):
                self[index] = state

    def commit(self) -> list[mx.array]:
        """Write the states to the arrays of the layer; return them for evaluation, and those that `undo` needs."""
        self._put(self.cache)
        return [*self._layer_cache.arrays, *self.saved]

    def undo(self) -> None:
        """Restore the old states, if there were any. Not evaluated."""
        if self.saved:
            self._put(self.saved)

    def _put(self, states: Sequence[mx.array | None]) -> None:
        for index, state in enumerate(states):
            if state is not None:
                changed = self._layer_cache.arrays[index]
                changed[self._slots] = state
