"""Runs a model of mlx-lm without computing, to observe the modules around its layers.

Every layer and every other module with weights is replaced by a recorder. Only the layers' inputs other than hidden
states, such as masks, are computed. The model is run several times, with other tokens, other outputs of every module
and other positions: the layers' inputs must not change, since a stage could not compute them. So no list of
architectures that can be split is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_backend_mlx.cache import Entry
from parallax_backend_mlx.module_map import ModuleMap, ModulePath, name_kind
from parallax_backend_mlx.placeholders import AXES, LayerPlaceholder
from parallax_backend_mlx.runtime import Module, flatten_tree, make_prompt_cache, mx, tree_map
from parallax_core.api import Unsupported

TOKENS = ((1, 2, 3), (3, 1, 1))
FILLS = (0.0, 1.0)
BEHIND = 0.5
SHIFT = 5
"""Tokens added to the reported length of a cache."""
HINT = "serve it whole, or try another backend"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The findings of a dry run."""

    uses: dict[str, frozenset[int]]
    """The number of layers before each use of a module that is not a layer, by the module's path."""
    entries: tuple[int | None, ...]
    """For each layer, the index of its entry in the cache."""
    needs: tuple[frozenset[str], ...]
    """For each layer, the kinds of entries whose length changes its inputs; see `name_kind`."""
    width: int
    vocab_size: int


@dataclass(slots=True)
class Watch:
    """The observations of one run."""

    cache: Sequence[Any]
    count: int
    """The number of layers."""
    fill: float
    passed: int = 0
    """The number of layers that have run."""
    last: mx.array | None = None
    """The output of the last layer."""
    width: int = 0
    entries: list[int | None] = field(default_factory=list)
    given: list[list[Any]] = field(default_factory=list)
    """The inputs of each layer other than hidden states and its entry, then those of each module after the layers."""
    uses: dict[str, set[int]] = field(default_factory=dict)

    def continues(self, hidden: mx.array) -> bool:
        """Whether ``hidden`` is the output of the previous layer, or there is no previous layer."""
        return self.last is None or self.last is hidden

    def note_use(self, path: str) -> None:
        """Record that the module at ``path`` is used now."""
        self.uses.setdefault(path, set()).add(self.passed)

    def replace(self, leaf: object) -> object:
        """Return ``leaf``, or an array of the same shape and dtype if it is an array."""
        return self.fill_like(leaf) if isinstance(leaf, mx.array) else leaf

    def fill_like(self, array: mx.array) -> mx.array:
        """Return a filled array like ``array``; after the layers the same in all runs, to reveal any other input."""
        return mx.full(array.shape, self.fill if self.passed < self.count else BEHIND, array.dtype)

    def find_entry(self, part: object) -> int | None:
        """Return the index of the entry that is, or contains, ``part``."""
        for index, entry in enumerate(self.cache):
            if part is entry or any(part is inner for inner in getattr(entry, "caches", ())):
                return index
        return None


class ModuleRecorder(LayerPlaceholder):
    """Replaces a module that is not a layer, and records its uses."""

    def __init__(self, place: ModulePath, watch: Watch) -> None:
        super().__init__(place.module)
        self.path, self.watch = place.path, watch

    def __getattr__(self, name: str) -> object:
        """Record the use: a tied head calls a method of the module, not the module."""
        self.watch.note_use(self.path)
        return super().__getattr__(name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return an output of the module's shape and dtype, with filled values."""
        self.watch.note_use(self.path)
        if self.watch.passed == self.watch.count:
            self.watch.given.append([*args, *kwargs.values()])
        return tree_map(self.watch.replace, self.replaced(*args, **kwargs))


class Recorder(LayerPlaceholder):
    """Replaces a layer, and records its inputs."""

    def __init__(self, layer: Module, watch: Watch) -> None:
        super().__init__(layer)
        self.watch = watch

    def __call__(self, *args: object, **kwargs: object) -> mx.array:
        """Return filled hidden states; the first argument, under any name, is the input.

        Raises:
            Unsupported: if the input is not the output of the previous layer.
        """
        watch = self.watch
        hidden, *parts = *args, *kwargs.values()
        if not isinstance(hidden, mx.array) or hidden.ndim != AXES or not watch.continues(hidden):
            message = f"layer {watch.passed} does not take the hidden states of the previous layer"
            raise Unsupported(message, HINT)
        found = [watch.find_entry(part) for part in parts]
        watch.entries.append(next((index for index in found if index is not None), None))
        watch.given.append([part for part, index in zip(parts, found, strict=True) if index is None])
        watch.width = hidden.shape[-1]
        watch.passed += 1
        watch.last = watch.fill_like(hidden)
        return watch.last


def dry_run_model(model: Module, module_map: ModuleMap) -> DryRun:
    """Run ``model`` with recorders, and return the findings.

    Raises:
        Unsupported: if its layers need more than hidden states from each other, or from the modules before them.
    """
    first, vocab_size = _watch_run(model, module_map, 0)
    second, _ = _watch_run(model, module_map, 1)
    _check_entries(first, model)
    if first.entries != second.entries or not _is_same(first.given, second.given):
        message = "layers of this model, or the modules after them, take more than hidden states"
        raise Unsupported(message, HINT)
    return DryRun(
        uses={path: frozenset(phases) for path, phases in first.uses.items()},
        entries=tuple(first.entries),
        needs=_find_needs(model, module_map, first),
        width=first.width,
        vocab_size=vocab_size,
    )


def _watch_run(model: Module, module_map: ModuleMap, number: int, shifted: str = "") -> tuple[Watch, int]:
    """Run ``model`` with its modules replaced; return the observations, and the last axis of the output."""
    cache = make_prompt_cache(model)
    for entry in cache:
        if name_kind(entry) == shifted:
            _shift_entry(entry)
    watch = Watch(cache, len(module_map.layers), FILLS[number])
    kept = [(place, place.module) for place in (*module_map.layers, *module_map.others)]
    stands: list[LayerPlaceholder] = [Recorder(place.module, watch) for place in module_map.layers]
    stands += [ModuleRecorder(place, watch) for place in module_map.others]
    try:
        for (place, _), stand in zip(kept, stands, strict=True):
            place.put(stand)
        output: mx.array = model(mx.array([TOKENS[number]], dtype=mx.int32), cache=cache)
        return watch, output.shape[-1]
    except Unsupported:
        raise
    except Exception as error:  # model files are of every kind, and fail in every way
        raise Unsupported(f"the layers of this model cannot be run separately: {error}", HINT) from error
    finally:
        for place, module in kept:
            place.put(module)


def _check_entries(watch: Watch, model: Module) -> None:
    """Refuse layers that run twice or share an entry, and entries that belong to no layer."""
    if watch.passed != watch.count:
        message = f"this model has {watch.count} layers and runs {watch.passed}"
        raise Unsupported(message, HINT)
    owned = [index for index in watch.entries if index is not None]
    if len(set(owned)) < len(owned):
        message = "layers of this model share a cache"
        raise Unsupported(message, HINT)
    fresh = make_prompt_cache(model)
    for index in set(range(len(fresh))) - set(owned):
        if len(_list_arrays(watch.cache[index])) > len(_list_arrays(fresh[index])):
            message = "this model keeps a cache before its first layer"
            raise Unsupported(message, HINT)


def _find_needs(model: Module, module_map: ModuleMap, watch: Watch) -> tuple[frozenset[str], ...]:
    """Return for each layer the kinds of entries whose length changes its inputs."""
    needs: list[set[str]] = [set() for _ in module_map.layers]
    for kind in {name_kind(entry) for entry in watch.cache}:
        shifted, _ = _watch_run(model, module_map, 0, kind)
        for need, before, after in zip(needs, watch.given, shifted.given, strict=False):
            if not _is_same(before, after):
                need.add(kind)
    return tuple(frozenset(need) for need in needs)


def _shift_entry(entry: Entry) -> None:
    parts: Sequence[Any] = getattr(entry, "caches", (entry,))
    for part in parts:
        if isinstance(getattr(part, "offset", None), int):
            part.offset += SHIFT


def _list_arrays(entry: Entry) -> list[mx.array]:
    return [leaf for _, leaf in flatten_tree(entry.state) if isinstance(leaf, mx.array)]


def _is_same(left: object, right: object) -> bool:
    leaves = list(_pair_leaves(left, right))
    return len(flatten_tree(left)) == len(flatten_tree(right)) == len(leaves) and all(leaves)


def _pair_leaves(left: object, right: object) -> Iterator[bool]:
    for (_, one), (_, other) in zip(flatten_tree(left), flatten_tree(right), strict=False):
        if isinstance(one, mx.array) and isinstance(other, mx.array):
            yield one.shape == other.shape and bool(mx.array_equal(one, other, equal_nan=True).item())
        else:
            yield type(one) is type(other) and (not isinstance(one, bool | int | float | str) or one == other)
