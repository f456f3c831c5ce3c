"""Replaces functions of mlx-lm with faster ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from parallax_backend_mlx.attention import choose_attention
from parallax_backend_mlx.runtime import mx, plain_attention, plain_swiglu
from parallax_backend_mlx.settings import Kernel
from parallax_backend_mlx.swiglu import multiply_gate

ATTENTION = plain_attention.__name__
GATE = "swiglu"


def replace_functions(kernel: Kernel = "auto") -> None:
    """Replace functions in the imported model files of mlx-lm, where this backend has a faster one for this device.

    Args:
        kernel: see `MlxSettings`; replaced functions stay replaced for later stages of the process.
    """
    if (attention := choose_attention(kernel)) is not None:
        _replace(ATTENTION, plain_attention, attention)
    if mx.default_device() != mx.Device(mx.gpu):
        _replace(GATE, plain_swiglu, multiply_gate)


def _replace(name: str, plain: object, ours: Callable[..., Any]) -> None:
    """Replace ``plain`` by ``ours`` in every model file: each has imported it under that name."""
    for path, module in list(sys.modules.items()):
        if path.startswith("mlx_lm.models.") and getattr(module, name, None) is plain:
            setattr(module, name, ours)
