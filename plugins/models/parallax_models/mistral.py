"""Mistral, Ministral 3, and the text part of Mistral 3."""

from __future__ import annotations

from parallax_core.api import ConfigReader
from parallax_models.dense import Dense
from parallax_models.family import Family

MISTRAL_WINDOW = 4096


def read_window(settings: ConfigReader) -> int:
    """Return the window of every layer, 0 for none; a Mistral has one unless config.json has null."""
    default = MISTRAL_WINDOW if settings.raw.get("model_type", "mistral") == "mistral" else 0
    return settings.size("sliding_window", default) if settings.raw.get("sliding_window", default) else 0


ADAPTER = Family(Dense(bias=None, window=read_window))
