"""Rotary position embeddings whose sines and cosines are computed once in a step, and not in every layer.

On a CPU MLX makes them of two dozen operations in each layer, twice; which take no less time for being small. All
layers turn by the same angles, and so what is left for each is a product, another with the halves swapped, and a sum.
The arithmetic is MLX's own, and so are the results. See arXiv 2104.09864, section 3.4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from parallax_backend_mlx.runtime import Llama3RoPE, Module, RoPE, YarnRoPE, mx

Offset = int | mx.array
"""Tokens before those in a step: one number, or int32 of shape [rows]."""


@dataclass(eq=False)
class Angles:
    """Sines and cosines of the last step, for all layers that turn alike."""

    rates: mx.array
    """The angle by which a position turns each pair, in radians: float32 of shape [dims / 2]."""
    _offset: Offset = -1
    _size: tuple[int, int] = (0, 0)
    _turns: tuple[mx.array, ...] = ()
    _wide: dict[int, tuple[mx.array, ...]] = field(default_factory=dict)

    def find(self, offset: Offset, shape: tuple[int, ...]) -> tuple[mx.array, ...]:
        """Return what to multiply by, and what to multiply the swapped halves by, float32 of shape [..., dims].

        Args:
            offset: one number, or in all layers of a step the same array; one that nobody changes in place.
            shape: of what is to be turned, [rows, heads, columns, width].
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
        plain: the one that was there.
        angles: of all layers that turn as this one does.
        factor: what is turned is multiplied by it.
    """

    def __init__(self, plain: Module, angles: Angles, factor: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plain: Any = plain
        self._angles, self._factor = angles, factor

    def __call__(self, x: mx.array, offset: Offset = 0, **named: Any) -> mx.array:  # noqa: ANN401  # of mlx-lm
        """Turn ``x``, of shape [rows, heads, columns, width], each row by its positions."""
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
    """Put a `Rotation` in the place of each rotary embedding of ``model`` that one can stand for."""
    found: dict[bytes, Angles] = {}
    for module in model.modules():  # type: ignore[no-untyped-call]
        for name, child in list(module.items()):
            rates = _find_rates(child)
            if rates is None:
                continue
            angles = found.setdefault(bytes(memoryview(rates)), Angles(rates))  # type: ignore[arg-type]  # a buffer
            setattr(module, name, Rotation(child, angles, child.mscale if type(child) is YarnRoPE else 1.0))


def _find_rates(module: Any) -> mx.array | None:  # noqa: ANN401  # anything a module may hold
    """Return how fast an embedding turns each pair, or None if it is none, or one of another kind."""
    if type(module) not in (RoPE, Llama3RoPE, YarnRoPE) or module.traditional:
        return None
    if type(module) is not RoPE:
        return mx.reciprocal(module._freqs.astype(mx.float32))  # noqa: SLF001  # its only state
    half = module.dims // 2
    return mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(module.base) / half)) * module.scale
