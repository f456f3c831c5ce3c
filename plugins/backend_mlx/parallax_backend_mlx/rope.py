"""Rotary position embeddings (rope) with sines and cosines computed once per step.

On a CPU MLX computes them with two dozen operations in each layer, twice, and small operations take time too. All
layers rotate by the same angles, so each needs only a product, another with the halves swapped, and a sum. The
arithmetic is MLX's own, and so are the results. See arXiv 2104.09864, section 3.4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from parallax_backend_mlx.runtime import Llama3RoPE, Module, RoPE, YarnRoPE, mx

Offset = int | mx.array
"""The number of tokens before those of a step: an int, or int32 of shape [rows]."""


@dataclass(eq=False)
class Angles:
    """Sines and cosines of the last step, for all layers with the same frequencies."""

    rates: mx.array
    """The angle per position of each pair, in radians: float32 of shape [dims / 2]."""
    _offset: Offset = -1
    _size: tuple[int, int] = (0, 0)
    _turns: tuple[mx.array, ...] = ()
    _wide: dict[int, tuple[mx.array, ...]] = field(default_factory=dict)

    def find(self, offset: Offset, shape: tuple[int, ...]) -> tuple[mx.array, ...]:
        """Return the factors of an array, and those of the array with swapped halves, float32 of shape [..., dims].

        Args:
            offset: an int, or the same array in all layers of a step, which must not be changed in place.
            shape: the shape of the array to rotate, [rows, heads, columns, width].
        """
        rows, heads, columns, _ = shape
        if not self._is_last(offset) or self._size != (rows, columns):
            self._offset, self._size, self._wide = offset, (rows, columns), {}
            self._turns = self._compute(offset, columns)
        if heads not in self._wide:
            size = (rows, heads, columns, self._turns[0].shape[-1])
            self._wide[heads] = tuple(mx.broadcast_to(each, size) for each in self._turns)
        return self._wide[heads]

    def _is_last(self, offset: Offset) -> bool:
        if isinstance(offset, int) and isinstance(self._offset, int):
            return offset == self._offset
        return offset is self._offset

    def _compute(self, offset: Offset, columns: int) -> tuple[mx.array, ...]:
        first = offset.reshape(-1, 1, 1) if isinstance(offset, mx.array) else offset
        positions = mx.arange(columns, dtype=mx.float32) + first
        angles = mx.expand_dims(positions, -1) * self.rates
        cosines, sines = mx.cos(angles), mx.sin(angles)
        return mx.concatenate([cosines, cosines], axis=-1), mx.concatenate([-sines, sines], axis=-1)


class Rotation(Module):
    """Replaces a rotary embedding of mlx-lm, which still handles the other cases.

    Args:
        plain: the embedding of mlx-lm.
        angles: the angles, shared by all layers with the same frequencies.
        factor: the factor of rotated dimensions.
    """

    def __init__(self, plain: Module, angles: Angles, factor: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plain: Any = plain
        self._angles, self._factor = angles, factor

    def __call__(self, x: mx.array, offset: Offset = 0, **named: Any) -> mx.array:  # noqa: ANN401  # of mlx-lm
        """Rotate ``x``, of shape [rows, heads, columns, width], each row by its positions."""
        dims = 2 * self._angles.rates.size
        if named or x.dtype != mx.float32 or x.ndim != 4 or x.shape[-1] != dims:  # noqa: PLR2004  # as above
            plain: mx.array = self._plain(x, offset=offset, **named)
            return plain
        if self._factor != 1:
            x = x * self._factor
        straight, swapped = self._angles.find(offset, x.shape)
        halves = [x[..., dims // 2 :], x[..., : dims // 2]]
        return x * straight + mx.concatenate(halves, axis=-1) * swapped


def replace_rotations(model: Module) -> None:
    """Replace each rotary embedding of ``model`` by a `Rotation`, if it is of a supported kind."""
    found: dict[bytes, Angles] = {}
    for module in model.modules():  # type: ignore[no-untyped-call]
        for name, child in list(module.items()):
            rates = _find_rates(child)
            if rates is None:
                continue
            angles = found.setdefault(bytes(memoryview(rates)), Angles(rates))  # type: ignore[arg-type]  # a buffer
            setattr(module, name, Rotation(child, angles, child.mscale if type(child) is YarnRoPE else 1.0))


def _find_rates(module: Any) -> mx.array | None:  # noqa: ANN401  # anything a module may hold
    """Return the angle per position of each pair of a rotary embedding; None for any other module."""
    if type(module) not in (RoPE, Llama3RoPE, YarnRoPE) or module.traditional:
        return None
    if type(module) is not RoPE:
        return mx.reciprocal(module._freqs.astype(mx.float32))  # noqa: SLF001  # its only state
    half = module.dims // 2
    return mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(module.base) / half)) * module.scale
