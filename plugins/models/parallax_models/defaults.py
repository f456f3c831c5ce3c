"""What families take for settings that config.json leaves out, as classes of transformers do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

ROPES = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
"""Settings of rope: if one is there, the others are not those of a model that says nothing of it."""


def fill(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults of their ``model_type``; those that are null stay so."""
    found = {**read_defaults().get(str(settings.get("model_type")), {}), **settings}
    if any(settings.get(name) for name in ROPES) and "rope_parameters" not in settings:
        found.pop("rope_parameters", None)
    return found


@cache
def read_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the defaults of each type of model; ``python -m tests.support.defaults`` writes the file."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(files(__package__).joinpath("defaults.json").read_text("utf-8"))
    return found
