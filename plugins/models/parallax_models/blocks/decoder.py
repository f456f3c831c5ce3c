"""The base of the blocks of families."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from parallax_backend_torch import api
from parallax_backend_torch.api import Config
from parallax_models.families import FAMILIES
from parallax_models.family import Family


class Decoder(api.Decoder):
    """As that of the backend; its `config` has the settings as the family's adapter reads them, with their defaults."""

    def __init__(self, config: Config) -> None:
        adapter = find_adapter(tuple(f"{each.__module__}:{each.__name__}" for each in type(self).__mro__))
        settings = adapter.read_settings(config.raw).raw
        super().__init__(Config(settings if adapter.turns_part else turn_whole(settings)), is_tied=adapter.is_tied)
        self.windows = adapter.list_windows(self.config)


@cache
def find_adapter(names: tuple[str, ...]) -> Family:
    """Return the adapter of the first family whose blocks have one of these names, the earlier ones first."""
    found = (family.adapter for name in names for family in FAMILIES if family.blocks["torch"].target == name)
    return cast("Family", next(found).load())


def turn_whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which no rope turns a part of a head."""
    kept = {name: value for name, value in settings.items() if name != "partial_rotary_factor"}
    return {name: turn_whole(value) if isinstance(value, Mapping) else value for name, value in kept.items()}
