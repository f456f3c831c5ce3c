"""SmolLM3: some layers do not know positions, and may have a sliding window."""

from __future__ import annotations

from parallax_core.api import ConfigReader
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING


def read_ropes(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer knows positions; every fourth does not, unless config.json differs."""
    interval = settings.count("no_rope_layer_interval", default=4)
    default = [(index + 1) % interval != 0 for index in range(settings.count("num_hidden_layers"))]
    given = settings.list_numbers("no_rope_layers")[: len(default)]
    return tuple(map(bool, given)) if len(given) == len(default) else tuple(default)


def list_kinds(settings: ConfigReader) -> list[str]:
    """Return the kind of each layer where config.json does not give it."""
    slides = settings.flag("use_sliding_window", default=False) and settings.has("sliding_window")
    return [FULL if has_rope or not slides else SLIDING for has_rope in read_ropes(settings)]


ADAPTER = Family(Dense(kinds=list_kinds), is_tied=True)
