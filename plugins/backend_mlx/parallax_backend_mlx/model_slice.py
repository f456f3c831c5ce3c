"""Cuts the layers of one stage out of a model of mlx-lm.

The model keeps its code, its full list of layers and their numbers, so that masks, settings of single layers and names
of weights need no translation. Modules that this stage does not run are replaced by placeholders without weights; see
`parallax_backend_mlx.placeholders`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TypeVar

from parallax_backend_mlx.dry_run import HINT, DryRun, dry_run_model
from parallax_backend_mlx.module_map import ModulePath, draw_module_map, name_kind
from parallax_backend_mlx.placeholders import Exit, LayerPlaceholder, PassThrough, UnusedPlaceholder
from parallax_backend_mlx.runtime import Module, make_prompt_cache, mx
from parallax_core.api import LayerRange, Unsupported

S = TypeVar("S", bound=LayerPlaceholder)


@dataclass(frozen=True, slots=True)
class ModelSlice:
    """A model with some of its layers, or all."""

    model: Module
    layers: LayerRange
    num_layers: int
    """The number of layers of the whole model."""
    dry_run: DryRun | None = None
    """The findings of the dry run; None for a whole model, which needs none."""
    dropped: tuple[str, ...] = ()
    """The paths of the removed modules."""
    spare: tuple[UnusedPlaceholder, ...] = ()
    """The placeholders of removed modules other than layers."""
    entry: PassThrough | None = None
    """The placeholder that takes the hidden states of the previous stage."""
    end: ModulePath | None = None
    """The last layer of the slice, after which the model is left; None if it is the last of the model."""

    def owns(self, name: str) -> bool:
        """Whether the parameter of this name belongs to a module of the slice."""
        parts = name.split(".")
        return not any(".".join(parts[:length]) in self.dropped for length in range(1, len(parts)))

    def cut(self, layers: LayerRange) -> ModelSlice:
        """Return some of the layers, with modules of their own and the same arrays; this slice must not be closed.

        Raises:
            Unsupported: if these layers cannot be run separately, or the modules cannot be copied.
        """
        try:
            twin = copy.deepcopy(self)  # a copy of an array shares its memory
        except TypeError as error:
            raise Unsupported(f"the modules of this model cannot be copied: {error}", HINT) from error
        if layers == self.layers:
            return twin
        part = slice_model(twin.model, layers, twin.dry_run)
        return replace(part, spare=(*twin.spare, *part.spare))

    def close(self, dtype: mx.Dtype) -> None:
        """Make the slice ready to run, once weights are loaded; its last layer then no longer shows its parameters.

        Args:
            dtype: the dtype of hidden states. The output of a removed embedding is never computed, but masks may be
                made in its dtype.
        """
        for placeholder in self.spare:
            placeholder.replaced.set_dtype(dtype)
        if self.end is not None and not isinstance(self.end.module, Exit):
            self.end.put(Exit(self.end.module))


def keep_model(model: Module) -> ModelSlice:
    """Return ``model`` with all its layers."""
    count = len(model.layers)
    return ModelSlice(model, LayerRange(0, count), count)


def slice_model(model: Module, layers: LayerRange, dry_run: DryRun | None = None) -> ModelSlice:
    """Drop the modules of ``model`` that a stage of ``layers`` does not run, and return the rest.

    Args:
        model: the model, with all its layers or placeholders for some.
        layers: the layers to keep.
        dry_run: the findings of the dry run of the whole model; None: it is run now.

    Raises:
        Unsupported: if its layers cannot be run separately.
    """
    module_map = draw_module_map(model)
    count = len(module_map.layers)
    if layers.stop > count:
        message = f"this model has {count} layers, and config.json has more"
        raise Unsupported(message, HINT)
    dry_run = dry_run or dry_run_model(model, module_map)
    for cut in (layers.start, layers.stop):
        dry_run.check_cut(cut)
    _check_needs(dry_run, layers, model)
    outside = [index for index in range(count) if not layers.start <= index < layers.stop]
    unused = [place for place in module_map.others if not _is_used(dry_run, place, layers)]
    places = [(module_map.layers[index], dry_run.extras[index]) for index in outside]
    holes = {place.path: _empty(place, PassThrough(place.module, extras)) for place, extras in places}
    return ModelSlice(
        model,
        layers,
        count,
        dry_run,
        dropped=(*holes, *(place.path for place in unused)),
        spare=tuple(_empty(place, UnusedPlaceholder(place.module)) for place in unused),
        entry=holes[module_map.layers[layers.start - 1].path] if layers.start else None,
        end=module_map.layers[layers.stop - 1] if layers.stop < count else None,
    )


def _empty(place: ModulePath, placeholder: S) -> S:
    place.put(placeholder)
    return placeholder


def _is_used(dry_run: DryRun, place: ModulePath, layers: LayerRange) -> bool:
    """Whether a stage runs a module: before its own layers, between them, after the last, or for inputs of layers."""
    phases, count = dry_run.uses.get(place.path, ()), len(dry_run.entries)
    if 0 in phases and any(dry_run.takes_tokens[layers.start : layers.stop]):
        return True
    return any(layers.start <= phase < layers.stop or phase == layers.stop == count for phase in phases)


def _check_needs(dry_run: DryRun, layers: LayerRange, model: Module) -> None:
    """Refuse a stage whose layers need positions that none of its entries keeps."""
    cache = make_prompt_cache(model)
    numbers = range(layers.start, layers.stop)
    kinds = {name_kind(cache[index]) for index in map(dry_run.entries.__getitem__, numbers) if index is not None}
    for number in numbers:
        if missing := dry_run.needs[number] - kinds:
            message = f"layer {number} must be in one stage with a layer that has a {min(missing)}"
            raise Unsupported(message, f"choose other layers than {layers.start}-{layers.stop}, or {HINT}")
