"""EXAONE 4: layers with full attention beside windows do not know positions."""

from __future__ import annotations

from parallax_core.api import ConfigReader
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.sliding import list_periodic


def list_kinds(settings: ConfigReader) -> list[str]:
    """Return the kind of each layer; every fourth has full attention, unless config.json differs."""
    period = settings.count("sliding_window_pattern", default=4) if settings.has("sliding_window") else 1
    return list_periodic(settings, period)


ADAPTER = Family(Dense(bias=None, head_norms="each", kinds=list_kinds))
