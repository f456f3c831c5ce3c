"""Gemma 3, the text model: every sixth layer has full attention, unless config.json differs."""

from __future__ import annotations

from parallax_core.api import ConfigReader
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import list_periodic


def list_kinds(settings: ConfigReader) -> list[str]:
    """Return the kind of each layer where config.json does not give it."""
    return list_periodic(settings, settings.count("sliding_window_pattern", "_sliding_window_pattern", default=6))


ADAPTER = Family(Dense(norms=4, head_norms="each", kinds=list_kinds), is_tied=True)
