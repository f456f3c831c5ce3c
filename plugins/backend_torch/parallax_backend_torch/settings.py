"""The options of the backend: the section ``[torch]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from parallax_backend_torch.kernels.library import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSettings:
    """The settings of this backend; `StagePlan.options` has a value for each field."""

    weights: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "int4"],
        Meta(description="On a CPU, the format of the weights in memory; auto follows --dtype."),
    ] = "auto"
    threads: Annotated[
        int, Meta(description="The number of threads that compute; 0: one for each core of this process.")
    ] = 0
    generic: Annotated[
        Literal["auto", "off", "always"],
        Meta(description="Run models on the code of transformers: auto where this backend has no layers for them."),
    ] = "auto"
    kernels: Annotated[
        Mode,
        Meta(
            description="auto: the fastest kernels, on CUDA in Triton; off: those of PyTorch; or, on a CPU, those of "
            "an instruction set."
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        Meta(description="On a CPU, the dtype of cached keys and values; auto follows --dtype, int8 halves bfloat16."),
    ] = "auto"
    graphs: Annotated[
        Literal["auto", "off"],
        Meta(description="On CUDA, record decode steps as graphs and replay them, for the models that allow it."),
    ] = "auto"

    def __post_init__(self) -> None:
        """Check the values that types do not restrict.

        Raises:
            ValueError: if ``threads`` is negative.
        """
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, and must be 0 or more")
