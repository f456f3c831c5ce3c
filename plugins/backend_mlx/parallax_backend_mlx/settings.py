"""The section ``[mlx]`` of the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLE = "PARALLAX_MLX__BLAS"


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxSettings:
    """What a user decides about this backend."""

    blas: str = "auto"
    """On Linux: ``auto``, ``off``, or the path of a library with the C interface of BLAS and 32-bit integers."""


def apply_settings(settings: MlxSettings) -> None:
    """Put what a file says where `parallax_backend_mlx.blas` looks, in this process and those it starts."""
    if settings.blas != "auto":
        os.environ[VARIABLE] = settings.blas
