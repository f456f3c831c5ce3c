"""The input of layers in a step: the tokens of all rows, concatenated, and their slots in the pages."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from parallax_backend_torch.kernels import attention
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.store import Store
from parallax_core.api import PagePool, Row
from parallax_sampling_torch.tensors import upload

HIDDEN = "hidden"
"""The name of the plane that every family has."""
Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(eq=False)
class FlatBatch:
    """The tokens of all rows, concatenated; tensors are on the device of the model unless stated otherwise."""

    counts: list[int]
    """The number of tokens of each row."""
    starts: list[int]
    """The number of tokens that each sequence had before the step."""
    device: torch.device

    @cached_property
    def number(self) -> torch.Tensor:
        """The row of each token, int64 of shape [tokens], on the CPU."""
        return torch.repeat_interleave(torch.arange(len(self.counts)), torch.tensor(self.counts))

    @cached_property
    def index(self) -> torch.Tensor:
        """The position of each token in its sequence, int64 of shape [tokens], on the CPU."""
        places = array("q")  # for a few rows, a loop is faster than a dozen operations of torch
        for start, count in zip(self.starts, self.counts, strict=True):
            places.extend(range(start, start + count))
        return upload(places)


class SlotMapping:
    """The slots of a step's tokens in one pool of keys and values: made once, for all its layers.

    Args:
        flat: the tokens of the step.
        pool: the pool, after pages were taken for the rows.
        rows: the rows of the step.
    """

    def __init__(self, flat: FlatBatch, pool: PagePool, rows: Sequence[Row]) -> None:
        self.flat = flat
        self.window = pool.info.window
        words, offsets, slots, size = array("i"), array("i"), array("q"), pool.info.page_size
        for row in rows:
            first, pages = pool.pages(row.seq)
            offsets.append(len(words) - first)
            words.extend(pages)
            places = range(row.start, row.start + len(row.tokens))
            slots.extend([pages[place // size - first] * size + place % size for place in places])
        tables, begins = upload(words), upload(offsets)
        starts, counts = (upload(array("i", each)) for each in (flat.starts, flat.counts))
        self.rows = attention.Rows(tables, begins, starts, counts, size)
        """The page tables, on the CPU."""
        self.slots = upload(slots).to(flat.device)
        """The slots of the new tokens, int64 of shape [tokens]."""


class Slots:
    """The states of a step's rows in one pool of states: read during the step, and written after it succeeded.

    Args:
        flat: the tokens of the step.
        pool: the pool, after pages were taken for the rows.
        rows: the rows of the step.
    """

    def __init__(self, flat: FlatBatch, pool: PagePool, rows: Sequence[Row]) -> None:
        self.flat = flat
        self.slots = torch.tensor([pool.pages(row.seq)[1][0] for row in rows]).to(flat.device)
        """The slot of each row, int64 of shape [rows]."""
        self.is_old = torch.tensor([start > 0 for start in flat.starts]).to(flat.device)
        """Whether a row has a state from an earlier step, bool of shape [rows]."""
        self._put: list[tuple[torch.Tensor, torch.Tensor]] = []

    def put(self, kept: torch.Tensor, states: torch.Tensor) -> None:
        """Set the new states of a layer, one for each row, to be written by `commit`."""
        self._put.append((kept, states))

    def commit(self) -> None:
        """Write the states set by `put`."""
        for kept, states in self._put:
            kept[self.slots] = states
        self._put.clear()


@dataclass(frozen=True, eq=False, slots=True)
class LayerCache:
    """The cache tensors of one layer, and the slots of a step's rows in it."""

    kept: Sequence[torch.Tensor]
    """The tensors of the cache, each of shape [slots, ...]."""
    places: SlotMapping | Slots
    beside: LayerCache | None = None
    """What the layer keeps in another pool; see `store.CacheSpec.beside`."""


@dataclass(frozen=True, eq=False, slots=True)
class Carried:
    """The planes that go from layer to layer; see `parallax_core.api.Plane`."""

    hidden: torch.Tensor
    """The plane ``hidden``, [tokens, width]; of families with several streams [tokens, streams, width]."""
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The other planes by name, each of shape [tokens, ...]."""

    def replace(self, hidden: torch.Tensor, **others: torch.Tensor) -> Carried:
        """Return the planes with others in their place, or beside them."""
        return Carried(hidden, {**self.others, **others} if others else self.others)

    def pick(self, names: Iterable[str]) -> list[torch.Tensor]:
        """Return the planes of these names, in their order."""
        return [self.hidden if name == HIDDEN else self.others[name] for name in names]


@dataclass(eq=False)
class Step:
    """The input of all layers in a step."""

    tokens: torch.Tensor
    """Token ids, int64 of shape [tokens]."""
    positions: torch.Tensor
    """int64 of shape [tokens]."""
    caches: Sequence[LayerCache]
    """One for each layer of the stage."""
    angles: dict[Rope, Angles] = field(default_factory=dict)
    shared: dict[object, torch.Tensor] = field(default_factory=dict)
    """What a layer computed for later layers of the stage, under keys of its family."""

    def find_angles(self, rope: Rope) -> Angles:
        """Return the cosines and sines of every token; computed on the first call for a rope."""
        if rope not in self.angles:
            self.angles[rope] = rope.find_angles(self.positions)
        return self.angles[rope]

    def commit(self) -> None:
        """Write the new states of all layers, which a failed step must not change."""
        for cache in self.caches:
            part: LayerCache | None = cache
            while part is not None:
                if isinstance(part.places, Slots):
                    part.places.commit()
                part = part.beside


def flatten_rows(rows: Sequence[Row], device: torch.device) -> FlatBatch:
    """Return the tokens of ``rows``, concatenated."""
    return FlatBatch([len(row.tokens) for row in rows], [row.start for row in rows], device)


def make_step(rows: Sequence[Row], pools: Sequence[PagePool], store: Store) -> Step:
    """Return ``rows``, for which pages were taken, as a step on a CPU."""
    flat = flatten_rows(rows, store.device)
    places = find_places(flat, pools, rows)
    return Step(*read_tokens(flat, rows), make_caches(store, places))


def make_caches(store: Store, places: Sequence[SlotMapping | Slots]) -> list[LayerCache]:
    """Return the cache of each layer, with the slots in its pool."""
    made = []
    for parts in store.layers:
        cache = None
        for part in reversed(parts):
            cache = LayerCache(part.tensors, places[part.pool], cache)
        assert cache is not None
        made.append(cache)
    return made


def find_places(flat: FlatBatch, pools: Sequence[PagePool], rows: Sequence[Row]) -> list[SlotMapping | Slots]:
    """Return the slots of ``rows`` in each pool, after pages were taken for them."""
    return [Slots(flat, pool, rows) if pool.info.kind == "state" else SlotMapping(flat, pool, rows) for pool in pools]


def read_tokens(flat: FlatBatch, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids and positions of all rows, int64 of shape [tokens] each."""
    words = array("q")
    for row in rows:
        words.extend(row.tokens)
    positions = flat.index
    if any(row.positions for row in rows):
        given = array("q")
        for row in rows:
            given.extend(row.positions or range(row.start, row.start + len(row.tokens)))
        positions = upload(given)
    return upload(words).to(flat.device), positions.to(flat.device)
