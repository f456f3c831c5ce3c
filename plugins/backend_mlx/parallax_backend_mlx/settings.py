"""The options of the backend: the section ``[mlx]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["auto", "off"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxSettings:
    """The settings of this backend; `StagePlan.options` has a value for each field."""

    blas: str = "auto"
    """On Linux: ``auto``, ``off``, or the path of a library with the C interface of BLAS and 32-bit integers."""
    kernel: Kernel = "auto"
    """On Metal: whether decodes read keys from their pages with this backend's kernel, if its self-test passes."""


@dataclass(slots=True)
class ProcessSettings:
    """Settings of the whole process: MLX binds to its BLAS when it is imported, before any stage is opened."""

    blas: str = "auto"
    """See `MlxSettings`."""


PROCESS = ProcessSettings()
