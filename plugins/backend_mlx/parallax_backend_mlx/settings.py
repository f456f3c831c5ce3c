"""The section ``[mlx]`` of the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

VARIABLE = "PARALLAX_MLX__BLAS"
KERNEL_VARIABLE = "PARALLAX_MLX__KERNEL"


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxSettings:
    """What a user decides about this backend."""

    blas: str = "auto"
    """On Linux: ``auto``, ``off``, or the path of a library with the C interface of BLAS and 32-bit integers."""
    kernel: Literal["auto", "off"] = "auto"
    """On Metal: whether decodes read keys from their pages with a kernel of ours, where it proves right."""


def apply_settings(settings: MlxSettings) -> None:
    """Put what a file says where it is looked for when a model is loaded, in this process and those it starts."""
    for name, value in ((VARIABLE, settings.blas), (KERNEL_VARIABLE, settings.kernel)):
        if value != "auto":
            os.environ[name] = value
