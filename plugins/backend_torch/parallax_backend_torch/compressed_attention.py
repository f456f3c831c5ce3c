"""Attention of a layer to a window of tokens and to compressed ones, of low rank (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.compressed import Compressor, EntryIndex, Seen, attend_both, rotate_pairs, see_window
from parallax_backend_torch.latent import multiply_heads
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.sparse import SeenRow, list_rows
from parallax_backend_torch.step import LayerCache, SlotMapping, Step
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSizes:
    """The sizes of attention that its matrices do not say."""

    num_heads: int
    width: int
    num_groups: int
    """The groups of heads whose results become narrow together."""
    window: int
    eps: float


@dataclass(frozen=True, eq=False, slots=True)
class Entries:
    """Compressed tokens of a layer, and their index, if it has one."""

    compressor: Compressor
    index: EntryIndex | None

    def list_compressors(self) -> list[Compressor]:
        """Return what makes the entries, and those of the index."""
        return [self.compressor, *([self.index.compressor] if self.index else ())]


class CompressedAttention:
    """Attention of one layer; keys are the values too.

    Args:
        weights: with ``q_a_proj``, ``q_b_proj``, ``kv_proj``, ``o_a_proj``, ``o_b_proj``, ``sinks``, and the norms
            ``q_a_norm`` and ``kv_norm``.
        sizes: the sizes.
        rope: the rope of queries and keys.
        entries: the compressed tokens; None: the layer sees a window alone.
    """

    def __init__(self, weights: Weights, sizes: AttentionSizes, rope: Rope, entries: Entries | None) -> None:
        self._sizes, self._rope, self._entries = sizes, rope, entries
        self._narrow, self._query = weights.make_linear("q_a_proj"), weights.make_linear("q_b_proj")
        self._narrow_norm = Norm.read(weights, "q_a_norm", sizes.eps)
        self._head_norm = Norm.plain(weights, sizes.width, sizes.eps)
        self._key, self._key_norm = weights.make_linear("kv_proj"), Norm.read(weights, "kv_norm", sizes.eps)
        self._sinks = weights.read_vector("sinks")
        groups = weights.read_plain("o_a_proj.weight").unflatten(0, (sizes.num_groups, -1))
        self._groups = weights.keep_stack(groups.transpose(1, 2))
        self._back = weights.make_linear("o_b_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, angles, places = self._sizes, step.find_angles(self._rope), cache.places
        assert isinstance(places, SlotMapping)
        narrow = self._narrow_norm(self._narrow.apply(x))
        query = self._head_norm(self._query.apply(narrow).unflatten(1, (sizes.num_heads, -1)))
        key = self._key_norm(self._key.apply(x))[:, None]
        rotate_pairs(query, angles)
        rotate_pairs(key, angles)
        cache.kept[0][places.slots] = key.to(cache.kept[0].dtype)
        found = torch.empty_like(query)
        for row, far in self._list_seen(x, narrow, step, cache):
            seen = see_window(row, cache.kept[0], sizes.window)
            found[row.part] = attend_both(query[row.part], seen, far, sizes.width**-0.5, self._sinks).to(query.dtype)
        rotate_pairs(found, angles, -1)
        grouped = multiply_heads(found.flatten(1).unflatten(1, (sizes.num_groups, -1)), self._groups)
        return self._back.apply(grouped.flatten(1), residual)

    def _list_seen(
        self, x: torch.Tensor, narrow: torch.Tensor, step: Step, cache: LayerCache
    ) -> Iterator[tuple[SeenRow, Seen]]:
        """Yield the rows of a step, each with the entries that its tokens see, new ones among them."""
        assert isinstance(cache.places, SlotMapping)
        rows, entries, device = list(list_rows(cache.places, x.device)), self._entries, x.device
        if entries is None or cache.beside is None:
            nothing = torch.zeros(0, dtype=torch.int64, device=device)
            for row in rows:
                is_seen = torch.zeros(len(row.positions), 0, dtype=torch.bool, device=device)
                yield row, Seen(cache.kept[0], nothing, is_seen)
            return
        positions = torch.cat([row.positions for row in rows])
        for compressor, raw in zip(entries.list_compressors(), cache.kept[1:], strict=True):
            compressor.store(x, positions, raw[:, 0], cache.places.slots)
        assert isinstance(cache.beside.places, SlotMapping)
        asked = entries.index.prepare(x, narrow, step) if entries.index else None
        for row, far in zip(rows, list_rows(cache.beside.places, device), strict=True):
            for compressor, raw, kept in zip(
                entries.list_compressors(), cache.kept[1:], cache.beside.kept, strict=True
            ):
                compressor.compress(row, far, raw[:, 0], kept[:, 0])
            count = len(far.slots) // entries.compressor.sizes.rate
            number = torch.arange(count, device=device)
            is_seen = number < ((row.positions + 1) // entries.compressor.sizes.rate)[:, None]
            slots = entries.compressor.find_slots(far, count)
            if entries.index and asked and count > entries.index.num_chosen:
                keys = cache.beside.kept[1][entries.index.compressor.find_slots(far, count), 0]
                chosen = entries.index.choose(asked[0][row.part], asked[1][row.part], keys, is_seen)
                slots, is_seen = slots[chosen], is_seen.gather(1, chosen)
            yield row, Seen(cache.beside.kept[0], slots, is_seen)
