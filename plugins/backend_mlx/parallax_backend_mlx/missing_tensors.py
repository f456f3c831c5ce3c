"""Placeholders for tensors in missing files, while mlx-lm renames and joins the others.

``sanitize`` of a model file looks at all names: one expert of layer 0 tells it that the experts of every layer are to
be stacked, and the shape of one convolution that norms of every layer are still to be shifted by one. So it is shown
the whole checkpoint. Files that are here need nothing: MLX reads their data only when it is computed with. Where they
were fetched in part, holes in them would read as zeros, and are treated as tensors that are not here.
The placeholders are NaN, so that none of them can pass for a weight unnoticed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

from parallax_backend_mlx.runtime import Module, flatten_tree, mx
from parallax_core.api import ParallaxError

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
MATRIX = 2

Weights = dict[str, mx.array]


def fill_absent(names: Mapping[str, str], weights: Mapping[str, mx.array], model: Module) -> Weights:
    """Return something of the right shape and dtype for each tensor that is not in ``weights``.

    Args:
        names: all tensors of the checkpoint, each with its file.
        weights: those that are here.
        model: as mlx-lm built it.

    Raises:
        ParallaxError: if a tensor has a shape that decides over others, and nothing here tells it.
    """
    siblings = {_mask_numbers(name): array for name, array in weights.items()}
    shapes = _list_shapes(model)
    return {
        name: _fill_tensor(name, file, siblings.get(_mask_numbers(name)), shapes)
        for name, file in names.items()
        if name not in weights
    }


def fill_holes(weights: Mapping[str, mx.array], holes: Collection[str]) -> Weights:
    """Return something of the same shape and dtype for each of ``weights`` that is in ``holes``."""
    return {name: _fill_like(array.shape, array.dtype) for name, array in weights.items() if name in holes}


def find_spoilt(arrays: Iterable[tuple[str, mx.array]]) -> str:
    """Return the name of an array that was made from something absent, or nothing. The arrays must be evaluated."""
    for name, array in arrays:
        if mx.issubdtype(array.dtype, mx.floating) and array.size:
            # Of arrays that were joined, one number of each part is enough.
            sample = array.reshape(array.shape[0], -1)[:, 0] if array.ndim else array
            if bool(mx.any(mx.isnan(sample)).item()):
                return name
    return ""


def _fill_tensor(name: str, file: str, sibling: mx.array | None, shapes: Mapping[str, tuple[int, ...]]) -> mx.array:
    if sibling is not None:
        return _fill_like(sibling.shape, sibling.dtype)
    shape = shapes.get(_cut_tail(name), (1, 1))
    if len(shape) > MATRIX:
        message = f"the layout of this checkpoint shows in {name} only, which is in {file}, and that is not here"
        raise ParallaxError(message, f"fetch {file} as well, or choose other layers")
    return _fill_like(shape, mx.float32)


def _fill_like(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.full(shape, math.nan if mx.issubdtype(dtype, mx.floating) else 0, dtype=dtype)


def _list_shapes(model: Module) -> dict[str, tuple[int, ...]]:
    parameters: object = model.parameters()  # type: ignore[no-untyped-call]
    return {_cut_tail(name): array.shape for name, array in flatten_tree(parameters)}


def _mask_numbers(name: str) -> str:
    """Return what tensors of one role in all layers, and all experts, have in common."""
    return NUMBER.sub("*", name)


def _cut_tail(name: str) -> str:
    """Return the name within a layer, or the last two parts of it: before the layers every model has its own prefix."""
    return ".".join(NUMBER.split(name)[-1].strip(".").split(".")[-2:])
