"""The section ``[torch]`` of the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Literal

from parallax_backend_torch.kernels.library import MODES, Mode
from parallax_core.api import ParallaxError

VARIABLES = {
    "weights": "PARALLAX_TORCH__WEIGHTS",
    "threads": "PARALLAX_TORCH__THREADS",
    "generic": "PARALLAX_TORCH__GENERIC",
    "kernels": "PARALLAX_TORCH__KERNELS",
    "graphs": "PARALLAX_TORCH__GRAPHS",
}
WEIGHTS = ("auto", "float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSettings:
    """What a user decides about this backend."""

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


def apply_settings(settings: TorchSettings) -> None:
    """Put what a file says where it is looked for when a model is loaded, in this process and those it starts."""
    for field in fields(settings):
        if (value := getattr(settings, field.name)) != field.default:
            os.environ[VARIABLES[field.name]] = str(value)


def read_settings() -> TorchSettings:
    """Return what the environment says.

    Raises:
        ParallaxError: for a value that is none.
    """
    return TorchSettings(
        weights=_read_word("weights", WEIGHTS),
        threads=_read_number("threads", 0),
        generic=_read_word("generic", ("auto", "off", "always")),
        kernels=_read_word("kernels", MODES),
        graphs=_read_word("graphs", ("auto", "off")),
    )


def _read_word(name: str, allowed: tuple[str, ...]) -> Literal["auto"]:
    """Return one of ``allowed``; what its type says is one of them, and the first is that of all settings."""
    value = os.environ.get(VARIABLES[name], allowed[0])
    if value not in allowed:
        raise ParallaxError(f"{VARIABLES[name]} is {value!r}", f"choose one of: {', '.join(allowed)}")
    return value  # type: ignore[return-value]


def _read_number(name: str, default: int) -> int:
    value = os.environ.get(VARIABLES[name], str(default))
    if not value.isdecimal():
        raise ParallaxError(f"{VARIABLES[name]} is {value!r}", "give a whole number")
    return int(value)
