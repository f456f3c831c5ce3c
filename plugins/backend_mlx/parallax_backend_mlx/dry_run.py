"""Runs a model of mlx-lm without computing, to observe the modules around its layers.

Every layer and every other module with weights is replaced by a recorder. Only the layers' inputs other than hidden
states, such as masks, are computed. The model is run several times, with other tokens, other outputs of every module
and other positions: the layers' inputs must not change, since a stage could not compute them. So no list of
architectures that can be split is needed.

Two further things may cross from layer to layer. Inputs that change with the tokens alone can be computed by every
stage that has the modules before the layers. And a layer may return more than hidden states, such as its keys for a
later one: the two then have to be in one stage.
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
    takes_tokens: tuple[bool, ...]
    """For each layer, whether its inputs are computed of the tokens, by modules before all layers."""
    sources: tuple[int | None, ...]
    """For each layer, the earlier one whose further output it reads."""
    extras: tuple[int, ...]
    """For each layer, the number of its outputs beside hidden states."""
    width: int
    vocab_size: int

    def check_cut(self, cut: int) -> None:
        """Check that a stage may begin with layer ``cut``.

        Raises:
            Unsupported: if a layer behind it reads an output of one before it.
        """
        for reader, source in enumerate(self.sources):
            if source is not None and source < cut <= reader:
                why = f"layer {reader} reads a further output of layer {source}"
                message = f"the model cannot be cut between layers {cut - 1} and {cut}: {why}"
                raise Unsupported(message, f"choose another border, or {HINT}")


@dataclass(frozen=True, slots=True)
class Carried:
    """Stands for an output of a layer other than its hidden states, until a later layer reads it."""

    layer: int


@dataclass(slots=True)
class Watch:
    """The observations of one run."""

    cache: Sequence[Any]
    count: int
    """The number of layers."""
    fill: float
    """Of the outputs of modules before the layers."""
    between: float
    """Of the outputs of layers, and of modules between them."""
    extras: tuple[int, ...]
    """See `DryRun.extras`."""
    passed: int = 0
    """The number of layers that have run."""
    last: mx.array | None = None
    """The output of the last layer."""
    width: int = 0
    entries: list[int | None] = field(default_factory=list)
    given: list[list[Any]] = field(default_factory=list)
    """The inputs of each layer other than hidden states and its entry, then those of each module after the layers."""
    sources: list[int | None] = field(default_factory=list)
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
        fill = self.between if self.passed else self.fill
        return mx.full(array.shape, fill if self.passed < self.count else BEHIND, array.dtype)

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

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return filled hidden states, and what stands for other outputs; the first argument is the input.

        Raises:
            Unsupported: if the input is not the output of the previous layer.
        """
        watch = self.watch
        hidden, *parts = *args, *kwargs.values()
        if not isinstance(hidden, mx.array) or hidden.ndim != AXES or not watch.continues(hidden):
            message = f"layer {watch.passed} does not take the hidden states of the previous layer"
            raise Unsupported(message, HINT)
        read = [part.layer for part in parts if isinstance(part, Carried)]
        watch.sources.append(read[0] if read else None)
        parts = [part for part in parts if not isinstance(part, Carried)]
        found = [watch.find_entry(part) for part in parts]
        watch.entries.append(next((index for index in found if index is not None), None))
        watch.given.append([part for part, index in zip(parts, found, strict=True) if index is None])
        watch.width = hidden.shape[-1]
        watch.passed += 1
        watch.last = watch.fill_like(hidden)
        more = watch.extras[watch.passed - 1]
        return (watch.last, *[Carried(watch.passed - 1)] * more) if more else watch.last


class OutputCounter(LayerPlaceholder):
    """Runs a layer, and counts its outputs."""

    def __init__(self, layer: Module, counts: list[int]) -> None:
        super().__init__(layer)
        self.counts = counts

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return what the layer returns."""
        found = self.replaced(*args, **kwargs)
        self.counts.append(len(found) if isinstance(found, tuple) else 1)
        return found


def dry_run_model(model: Module, module_map: ModuleMap) -> DryRun:
    """Run ``model`` with recorders, and return the findings.

    Raises:
        Unsupported: if its layers need from each other what cannot be told apart, or from the modules before them what
            does not follow from the tokens.
    """
    plain = (0,) * len(module_map.layers)
    try:
        return _dry_run_layers(model, module_map, plain)
    except Unsupported:
        if (extras := _count_extras(model, module_map)) == plain:
            raise
    return _dry_run_layers(model, module_map, extras)


def _dry_run_layers(model: Module, module_map: ModuleMap, extras: tuple[int, ...]) -> DryRun:
    count = len(module_map.layers)
    first, vocab_size = _watch_run(model, module_map, Trial(extras))
    second, _ = _watch_run(model, module_map, Trial(extras, tokens=1, fill=1, between=1))
    _check_entries(first, model)
    same = [_is_same(one, other) for one, other in zip(first.given, second.given, strict=False)]
    is_told = all(same)
    if not is_told:  # by the tokens, or by other layers?
        between, _ = _watch_run(model, module_map, Trial(extras, between=1))
        is_told = _is_same(first.given, between.given) and all(same[count:])
    if not is_told or (first.entries, first.sources) != (second.entries, second.sources):
        message = "layers of this model, or the modules after them, take more than hidden states"
        raise Unsupported(message, HINT)
    return DryRun(
        uses={path: frozenset(phases) for path, phases in first.uses.items()},
        entries=tuple(first.entries),
        needs=_find_needs(model, module_map, first),
        takes_tokens=tuple(not each for each in same[:count]),
        sources=tuple(first.sources),
        extras=extras,
        width=first.width,
        vocab_size=vocab_size,
    )


def _count_extras(model: Module, module_map: ModuleMap) -> tuple[int, ...]:
    """Return how many outputs each layer has beside hidden states; their arrays are not computed."""
    counts: list[int] = []
    stands = [OutputCounter(place.module, counts) for place in module_map.layers]
    _run_replaced(model, list(zip(module_map.layers, stands, strict=True)), TOKENS[0], make_prompt_cache(model))
    return tuple(each - 1 for each in counts)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run gives a model; the numbers are of `TOKENS` and `FILLS`."""

    extras: tuple[int, ...]
    tokens: int = 0
    fill: int = 0
    between: int = 0
    shifted: str = ""
    """The kind of entries that report another length."""


def _watch_run(model: Module, module_map: ModuleMap, trial: Trial) -> tuple[Watch, int]:
    """Run ``model`` with its modules replaced; return the observations, and the last axis of the output."""
    cache = make_prompt_cache(model)
    for entry in cache:
        if name_kind(entry) == trial.shifted:
            _shift_entry(entry)
    watch = Watch(cache, len(module_map.layers), FILLS[trial.fill], FILLS[trial.between], trial.extras)
    stands: list[tuple[ModulePath, LayerPlaceholder]] = [
        (place, Recorder(place.module, watch)) for place in module_map.layers
    ]
    stands += [(place, ModuleRecorder(place, watch)) for place in module_map.others]
    output = _run_replaced(model, stands, TOKENS[trial.tokens], cache)
    return watch, output.shape[-1]


def _run_replaced(
    model: Module, stands: Sequence[tuple[ModulePath, LayerPlaceholder]], tokens: Sequence[int], cache: Sequence[Any]
) -> mx.array:
    """Run ``model`` with some of its modules replaced for that time."""
    kept = [(place, place.module) for place, _ in stands]
    try:
        for place, stand in stands:
            place.put(stand)
        output: mx.array = model(mx.array([tokens], dtype=mx.int32), cache=cache)
    except Unsupported:
        raise
    except Exception as error:  # model files are of every kind, and fail in every way
        raise Unsupported(f"the layers of this model cannot be run separately: {error}", HINT) from error
    else:
        return output
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
        shifted, _ = _watch_run(model, module_map, Trial(watch.extras, shifted=kind))
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
