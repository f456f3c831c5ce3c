"""Makes placeholders for tensors in missing files, while mlx-lm renames and joins the others.

``sanitize`` of a model file looks at all names: from one expert of layer 0 it concludes that the experts of every layer
are to be stacked, and from the shape of one convolution that the norms of every layer are to be shifted by one. So it
is given the whole checkpoint. Files that are present need no placeholders: MLX reads their data only when it computes.
Holes in files that were fetched in part would read as zeros, and are treated as missing tensors.
The placeholders are NaN, so that none of them can be used as a weight unnoticed.
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
    """Return a placeholder of the right shape and dtype for each tensor that is not in ``weights``.

    Args:
        names: the file of each tensor of the checkpoint.
        weights: the tensors that are present.
        model: the model that mlx-lm built.

    Raises:
        ParallaxError: if the shape of a tensor affects others, and cannot be found without its file.
    """
    siblings = {_mask_numbers(name): array for name, array in weights.items()}
    shapes = _list_shapes(model)
    return {
        name: _fill_tensor(name, file, siblings.get(_mask_numbers(name)), shapes)
        for name, file in names.items()
        if name not in weights
    }


def fill_holes(weights: Mapping[str, mx.array], holes: Collection[str]) -> Weights:
    """Return a placeholder of the same shape and dtype for each of ``weights`` that is in ``holes``."""
    return {name: _fill_like(array.shape, array.dtype) for name, array in weights.items() if name in holes}


def find_spoilt(arrays: Iterable[tuple[str, mx.array]]) -> str:
    """Return the name of an array made from a placeholder, or an empty text. The arrays must be evaluated."""
    for name, array in arrays:
        if mx.issubdtype(array.dtype, mx.floating) and array.size:
            # One number of each part is enough for joined arrays.
            sample = array.reshape(array.shape[0], -1)[:, 0] if array.ndim else array
            if bool(mx.any(mx.isnan(sample)).item()):
                return name
    return ""


def _fill_tensor(name: str, file: str, sibling: mx.array | None, shapes: Mapping[str, tuple[int, ...]]) -> mx.array:
    if sibling is not None:
        return _fill_like(sibling.shape, sibling.dtype)
    shape = shapes.get(_cut_tail(name), (1, 1))
    if len(shape) > MATRIX:
        message = f"the layout of this checkpoint depends on {name}, which is in {file}, and that file is missing"
        raise ParallaxError(message, f"fetch {file} as well, or choose other layers")
    return _fill_like(shape, mx.float32)


def _fill_like(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.full(shape, math.nan if mx.issubdtype(dtype, mx.floating) else 0, dtype=dtype)


def _list_shapes(model: Module) -> dict[str, tuple[int, ...]]:
    parameters: object = model.parameters()  # type: ignore[no-untyped-call]
    return {_cut_tail(name): array.shape for name, array in flatten_tree(parameters)}


def _mask_numbers(name: str) -> str:
    """Return a name without numbers, which is equal for the same tensor of all layers and experts."""
    return NUMBER.sub("*", name)


def _cut_tail(name: str) -> str:
    """Return the name within its layer, or its last two parts: the prefix before the layers differs between models."""
    return ".".join(NUMBER.split(name)[-1].strip(".").split(".")[-2:])
