"""Rotary position embeddings (rope, arXiv 2104.09864): plain, and scaled in the usual ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from parallax_backend_torch.config import HINT, Config
from parallax_core.api import Unsupported

Range = tuple[float, float]

MOST_WIDTH = 2**16
"""The most numbers of a head."""
LONG = ("longrope", "su")
"""The names of LongRoPE, that of the first Phi-3 last."""
NUMBERS = {
    **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow", "factor", "rope_theta"), 2.0**40),
    **dict.fromkeys(("mscale", "mscale_all_dim"), 2.0**10),
    "partial_rotary_factor": 1.0,
}
"""The settings of rope that are numbers, if set, and the largest that makes sense."""


@dataclass(frozen=True, eq=False)
class Rope:
    """The frequencies of a rope. Layers with the same object share the cosines and sines of a step.

    The two numbers of a rotated pair are half of the width apart.
    """

    frequencies: torch.Tensor
    """float32 of shape [rotated width / 2]."""
    scale: float = 1.0
    """The factor of cosines and sines."""
    moved: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    """The frequencies by device, copied when first needed there."""

    @property
    def width(self) -> int:
        """The number of rotated dimensions, which are the first of each head."""
        return 2 * int(self.frequencies.shape[0])

    def find_angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of each position, float32 of shape [tokens, width / 2]."""
        device = positions.device
        if device not in self.moved:
            self.moved[device] = self.frequencies.to(device)
        angles = positions.to(torch.float32)[:, None] * self.moved[device]
        if self.scale == 1:
            return angles.cos(), angles.sin()
        return angles.cos() * self.scale, angles.sin() * self.scale


def make_rope(config: Config, width: int, kind: str = "") -> Rope:
    """Return the rope of a model.

    Args:
        config: with ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` as before transformers 5.
        width: the width of a head.
        kind: the kind of layer, such as ``full_attention``, if each kind has its own settings.

    Raises:
        Unsupported: if its scaling is not supported.
    """
    settings = read_rope(config, kind)
    if width > MOST_WIDTH:
        raise Unsupported(f"heads of {width} numbers are not supported", f"the most are {MOST_WIDTH}")
    rotated = int(width * float(settings.get("partial_rotary_factor", 1.0)))
    steps = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    frequencies = 1.0 / (float(settings["rope_theta"]) ** steps)
    scale, name = 1.0, settings.get("rope_type", "default")
    match name:
        case "default":
            pass
        case "linear":
            frequencies = frequencies / _read_number(settings, "factor")
        case "llama3":
            frequencies = _stretch_low(frequencies, settings, _read_trained(settings, config))
        case "yarn":
            frequencies, scale = _stretch_yarn(frequencies, settings, config), _find_attention_factor(settings)
        case "longrope" | "su":
            frequencies, scale = frequencies / _read_factors(settings, rotated), _find_long_factor(settings, config)
        case _:
            raise Unsupported(f"rope of the type {name!r} is not supported", HINT)
    return Rope(frequencies, scale)


def split_pairs(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Move the first of each pair of neighbours along ``dim`` to the first half, and the second to the second half."""
    pairs = x.unflatten(dim, (-1, 2))
    return torch.cat(pairs.unbind(dim + 1), dim=dim)


def read_rope(config: Config, kind: str = "") -> Mapping[str, Any]:
    """Return the settings of rope with the names of transformers 5."""
    parameters = dict(config.table("rope_parameters"))
    if kind and isinstance(parameters.get(kind), Mapping):
        parameters = dict(parameters[kind])
    if not parameters:
        parameters = dict(config.table("rope_scaling"))
        parameters.setdefault("rope_type", parameters.pop("type", "default"))
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = config.number("rope_theta", 10_000.0)
    if config.has("partial_rotary_factor"):
        parameters.setdefault("partial_rotary_factor", config.number("partial_rotary_factor"))
    for name, most in NUMBERS.items():
        if parameters.get(name) not in (None, 0) and _read_number(parameters, name) > most:
            raise Unsupported(f"{name!r} of the rope in config.json is {parameters[name]}, above {most:g}", HINT)
    return parameters


def scale_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return the factor of YaRN for the temperature of attention (arXiv 2309.00071, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def limit_context(config: Config) -> int:
    """Return the most tokens of a sequence: for LongRoPE, those whose factors are the short ones.

    For longer sequences the authors change the factors of all tokens, those before too, which a cache has to keep.
    """
    length, settings = config.count("max_position_embeddings"), config.table("rope_parameters")
    settings = settings or config.table("rope_scaling")
    is_long = settings.get("rope_type", settings.get("type")) in LONG
    return min(length, int(_read_trained(settings, config))) if is_long else length


def _read_number(settings: Mapping[str, Any], name: str) -> float:
    """Return a number of the settings of rope, or raise `Unsupported` that names it."""
    value = settings.get(name)
    if value is None:
        raise Unsupported(f"the rope in config.json has no {name!r}", HINT)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**60:
        raise Unsupported(f"{name!r} of the rope in config.json is {value!s:.20}, not a number above 0", HINT)
    return float(value)


def _read_trained(settings: Mapping[str, Any], config: Config) -> float:
    """Return the number of tokens a model was trained for, before its rope was scaled."""
    name = "original_max_position_embeddings"
    if settings.get(name) is not None and not config.has(name):
        return _read_number(settings, name)
    return float(config.count(name, default=config.count("max_position_embeddings")))


def _read_factors(settings: Mapping[str, Any], rotated: int) -> torch.Tensor:
    """Return the divisors of frequencies of LongRoPE for sequences that the model was trained for."""
    factors = settings.get("short_factor")
    if not isinstance(factors, list) or len(factors) != rotated // 2:
        message = f"'short_factor' of the rope in config.json is not a list of {rotated // 2} numbers"
        raise Unsupported(message, HINT)
    return torch.tensor(factors, dtype=torch.float32)


def _find_long_factor(settings: Mapping[str, Any], config: Config) -> float:
    """Return the factor of cosines and sines (arXiv 2402.13753, section 3)."""
    if settings.get("attention_factor") is not None:
        return _read_number(settings, "attention_factor")
    trained = _read_trained(settings, config)
    factor = settings.get("factor") or config.count("max_position_embeddings") / trained
    return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


def _stretch_low(frequencies: torch.Tensor, settings: Mapping[str, Any], trained: float) -> torch.Tensor:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them (Llama 3.1)."""
    factor, low, high = (_read_number(settings, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = trained * frequencies / (2 * math.pi)  # in the context the model was trained for
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (share + (1 - share) / factor)


def _stretch_yarn(frequencies: torch.Tensor, settings: Mapping[str, Any], config: Config) -> torch.Tensor:
    """Divide frequencies of few rotations by the factor, and keep those of many rotations (YaRN, section 3.2)."""
    trained, base = _read_trained(settings, config), float(settings["rope_theta"])
    width = 2 * len(frequencies)

    def find_place(turns: float) -> float:
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = find_place(float(settings.get("beta_fast") or 32))
    high = find_place(float(settings.get("beta_slow") or 1))
    table = config.table("rope_parameters") or config.table("rope_scaling")
    if table.get("truncate", True):  # not of each kind of layer
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, width - 1.0)
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - low) / ((high - low) or 0.001)
    share = ramp.clamp(0, 1)
    return frequencies / _read_number(settings, "factor") * share + frequencies * (1 - share)


def _find_attention_factor(settings: Mapping[str, Any]) -> float:
    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    factor, weight, whole = (float(settings.get(name) or 0) for name in ("factor", "mscale", "mscale_all_dim"))
    if weight and whole:
        return scale_magnitude(factor, weight) / scale_magnitude(factor, whole)
    return scale_magnitude(factor)
