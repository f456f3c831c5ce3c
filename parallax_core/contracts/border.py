"""Finds the planes that cross from layer to layer, and where a model cannot be cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import Unsupported
from parallax_core.contracts.model import HIDDEN, ModelShape, Plane
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.tensor import ITEM_BYTES, TensorSpec

HINT = "fetch the model again"


@dataclass(frozen=True, slots=True)
class Border:
    """The border before a layer."""

    layer: int
    planes: tuple[Plane, ...]
    """The planes that cross it: given before it, and taken by the layer or a later one before they are given again."""
    obstacle: str = ""
    """Why no stage may begin here, as in ``layer 18 reads the keys of layer 13``; empty: one may."""


def list_borders(shape: ModelShape) -> tuple[Border, ...]:
    """Return the border before each layer but the first.

    Raises:
        Unsupported: if a layer takes what no earlier one gives, or reads the keys of one that is not before it, or of
            one that has none.
    """
    readers, wanted = _find_readers(shape), _find_wanted(shape)
    given = {HIDDEN: Plane(HIDDEN, (shape.hidden_size,))}
    borders = []
    for index, layer in enumerate(shape.layers):
        if index:
            planes = tuple(plane for name, plane in given.items() if name in wanted[index])
            borders.append(Border(index, planes, readers.get(index, "")))
        _check_takes(f"layer {index}", layer.takes, given)
        given |= {plane.name: plane for plane in layer.gives or (Plane(HIDDEN, (shape.hidden_size,)),)}
    _check_takes("the head", shape.takes, given)
    return tuple(borders)


def find_illegal(borders: Iterable[Border]) -> frozenset[int]:
    """Return the layers with which no stage may begin."""
    return frozenset(border.layer for border in borders if border.obstacle)


def check_cuts(shape: ModelShape, layers: LayerRange) -> None:
    """Check that a stage may begin and end with these layers.

    Raises:
        Unsupported: if not; it names the layers that must stay together, and the nearest borders.
    """
    borders = list_borders(shape)
    for cut in (layers.start, layers.stop):
        if 0 < cut <= len(borders) and borders[cut - 1].obstacle:
            raise refuse_cut(borders, cut)


def refuse_cut(borders: Sequence[Border], cut: int) -> Unsupported:
    """Return the error for a stage that would begin with the layer ``cut``."""
    legal = [border.layer for border in borders if not border.obstacle]
    near = [*[each for each in legal if each < cut][-1:], *[each for each in legal if each > cut][:1]]
    where = " or ".join(map(str, near))
    message = f"the model cannot be cut between layers {cut - 1} and {cut}: {borders[cut - 1].obstacle}"
    return Unsupported(message, f"let a stage begin with layer {where}" if where else "run the model in one stage")


def describe_planes(planes: Sequence[Plane], dtype: str) -> tuple[TensorSpec, ...]:
    """Return planes as what a stage takes or gives, in the dtype of its activations unless theirs is fixed."""
    return tuple(
        TensorSpec(plane.shape[-1], plane.dtype or dtype, plane.name, plane.shape[:-1], bool(plane.dtype))
        for plane in planes
    )


def describe_ends(shape: ModelShape, layers: LayerRange, dtype: str) -> tuple[tuple[TensorSpec, ...], ...]:
    """Return the tensors that a stage of these layers takes, and those it gives."""
    borders = list_borders(shape)
    ends = (borders[cut - 1].planes if 0 < cut <= len(borders) else () for cut in (layers.start, layers.stop))
    return tuple(describe_planes(planes, dtype) for planes in ends)


def count_border_bytes(border: Border, value_bytes: int) -> int:
    """Return the bytes of a token that cross a border; 0 if no stage may begin there.

    Args:
        border: the border.
        value_bytes: of a number whose dtype is that of the activations.
    """
    if border.obstacle:
        return 0
    specs = describe_planes(border.planes, "")
    sizes = (ITEM_BYTES[spec.dtype] if spec.dtype else value_bytes for spec in specs)
    return sum(math.prod(spec.token_shape) * size for spec, size in zip(specs, sizes, strict=True))


def _find_readers(shape: ModelShape) -> dict[int, str]:
    """Return the obstacle at each border that lies between a layer and one that reads its keys."""
    last: dict[int, int] = {}
    """The last reader of each layer that is read."""
    for reader, layer in enumerate(shape.layers):
        source = layer.source
        if source is None:
            continue
        if not 0 <= source < reader or not shape.layers[source].kv_width:
            raise Unsupported(f"layer {reader} would read the keys of layer {source}, which has none to read", HINT)
        last[source] = reader
    found: dict[int, str] = {}
    far = (0, 0)
    for cut, layer in enumerate(shape.layers):
        far = max(far, (last.get(cut - 1, 0), cut - 1))
        reader, source = (cut, layer.source) if layer.source is not None else far
        if reader >= cut > source:
            found[cut] = f"layer {reader} reads the keys of layer {source}"
    return found


def _find_wanted(shape: ModelShape) -> list[set[str]]:
    """Return the names of the planes that each layer or a later one takes, of those that are given before it."""
    wanted = {HIDDEN, *shape.takes}
    found = []
    for layer in reversed(shape.layers):
        wanted = wanted - {plane.name for plane in layer.gives} | {HIDDEN, *layer.takes}
        found.append(wanted)
    return found[::-1]


def _check_takes(what: str, names: Sequence[str], given: dict[str, Plane]) -> None:
    for name in names:
        if name not in given:
            raise Unsupported(f"{what} takes {name!r}, which no layer before it gives", HINT)
