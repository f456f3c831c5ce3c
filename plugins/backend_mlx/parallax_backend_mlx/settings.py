"""The options of the backend: the section ``[mlx]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Kernel = Literal["auto", "off"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MlxSettings:
    """The settings of this backend; `StagePlan.options` has a value for each field."""

    blas: Annotated[
        str, Meta(description="On Linux, the BLAS: auto, off, or the path of a library with 32-bit integers.")
    ] = "auto"
    kernel: Annotated[
        Kernel, Meta(description="On Metal, the paged decode kernel: auto (if its self-test passes) or off.")
    ] = "auto"


@dataclass(slots=True)
class ProcessSettings:
    """Settings of the whole process: MLX binds to its BLAS when it is imported, before any stage is opened."""

    blas: str = "auto"
    """See `MlxSettings`."""


PROCESS = ProcessSettings()
