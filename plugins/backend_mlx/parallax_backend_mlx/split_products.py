"""Computes halves of a large product on two cores.

Threads of OpenBLAS wait for each other by spinning, and take the time of whatever else runs. Streams of MLX sleep while
they wait: where another core is busy, halves on two streams take as long as the whole on one.
"""

from __future__ import annotations

from collections.abc import Callable

from parallax_backend_mlx.runtime import BLAS, mx

OTHER = mx.new_thread_local_stream(mx.cpu)
"""The stream of the second half."""
LEAST_WORK = 20_000_000
"""Multiplications of the smallest product that is split: those of a tenth of a millisecond and more."""


def split_product(multiply: Callable[[mx.array, mx.array], mx.array], x: mx.array, panels: mx.array) -> mx.array:
    """Return ``multiply(x, panels)``, of which each panel gives some columns, where it pays by two halves at once."""
    work = x.size // panels.shape[1] * panels.size
    if work < LEAST_WORK or not BLAS.leaves_core or len(panels) == 1:
        return multiply(x, panels)
    half = len(panels) // 2
    with mx.stream(OTHER):
        second = multiply(x, panels[half:])
    return mx.concatenate([multiply(x, panels[:half]), second], axis=-1)
