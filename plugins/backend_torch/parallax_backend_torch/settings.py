"""The options of the backend: the section ``[torch]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parallax_backend_torch.kernels.library import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSettings:
    """What a user decides about this backend; `StagePlan.options` has a value for each field."""

    weights: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """On a CPU, how the matrices of layers are kept: ``auto`` follows the dtype that is asked for."""
    threads: int = 0
    """Threads that compute; 0: as many as there are cores for this process."""
    generic: Literal["auto", "off", "always"] = "auto"
    """Whether models run on the code of transformers: where there is none here, never, or always."""
    kernels: Mode = "auto"
    """Which kernels compute; see `kernels.library.Mode`."""
    graphs: Literal["auto", "off"] = "auto"
    """On CUDA, whether steps of decodes are recorded as graphs and replayed, where a model's layers can be."""

    def __post_init__(self) -> None:
        """Check what the types do not say.

        Raises:
            ValueError: for fewer threads than none.
        """
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, and must be 0 or more")
