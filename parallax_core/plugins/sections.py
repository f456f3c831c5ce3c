"""Reads and checks the configuration sections that plugins declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from parallax_core.base.errors import UnknownName, UsageError
from parallax_core.config.config import Config
from parallax_core.config.source import WrittenSetting
from parallax_core.contracts.setting import SettingsSpec, ShownSetting
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.registry import Registry
from parallax_core.plugins.remedy import normalize

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PluginConfig:
    """The configuration as plugins read it."""

    def __init__(self, config: Config, registry: Registry[SettingsSpec]) -> None:
        self._config = config
        self._registry = registry

    @property
    def file(self) -> Path | None:
        """The configuration file in use; None: no file."""
        return self._config.file

    def section(self, schema: type[T]) -> T:
        """Return the section declared with this dataclass; see `Settings`."""
        return self._config.read(find_section(self._registry, schema), schema)

    def explain(self, section: str | None = None) -> list[ShownSetting]:
        """Return every setting of a section, or of all; see `Settings`."""
        names = [offer.spec.name for offer in self._registry.offers] if section is None else [section]
        return [setting for name in names for setting in self._explain(name)]

    def _explain(self, name: str) -> list[ShownSetting]:
        offer = self._registry.get(name)
        return [
            ShownSetting(
                section=each.section,
                key=each.key.name,
                value=each.shown,
                origin=each.origin.kind,
                place=each.origin.name,
                expected=each.key.expected,
                description=each.key.description,
                is_secret=each.key.is_secret,
            )
            for each in self._config.explain(name, offer.load(offer.spec.schema))
        ]


def find_section(registry: Registry[SettingsSpec], schema: type[Any]) -> str:
    """Return the name of the section declared with a dataclass.

    Raises:
        UnknownName: if no plugin declares one.
        PluginConflict: if several plugins declare a section of that name.
    """
    target = f"{schema.__module__}:{schema.__qualname__}"
    names = [offer.spec.name for offer in registry.offers if offer.spec.schema.target == target]
    if not names:
        raise UnknownName(f"no plugin declares a section with {target}", "declare it in parallax_register_settings")
    return registry.get(names[0]).spec.name


def check_sections(config: Config, registry: Registry[SettingsSpec], records: Sequence[PluginRecord]) -> None:
    """Read every given section, so that mistakes are reported before anything starts.

    A section of a plugin that is not loaded is ignored with a warning, and so is a variable for an unknown section:
    another environment may have the plugin.

    Raises:
        UsageError: if a section or key is unknown, or a value is invalid; the message names the place.
        PluginConflict: if several plugins declare a section.
        BrokenPlugin: if a plugin's dataclass cannot be used.
    """
    for name, values in config.sections.items():
        if name in registry.names():
            offer = registry.get(name)
            config.read(name, offer.load(offer.spec.schema))
        else:
            _check_unknown(name, values, registry, records)


def _check_unknown(
    name: str, values: Mapping[str, WrittenSetting], registry: Registry[SettingsSpec], records: Sequence[PluginRecord]
) -> None:
    origins = [written.origin for written in values.values()]
    place = origins[0].locate(name) if origins else f"[{name}]"
    if owner := next((record for record in records if _may_own(record, name)), None):
        logger.warning("%s is not used: plugin %r is %s", place, owner.name, owner.state)
        return
    near = get_close_matches(name, registry.names(), n=1)
    if not near and origins and all(origin.kind == "environment" for origin in origins):
        logger.warning("%s is not used: no plugin has a section [%s]", place, name)
        return
    message = f"{place}: there is no section [{name}]"
    known = f"there is: {', '.join(registry.names())}; a plugin that has it may not be installed"
    raise UsageError(message, f"did you mean [{near[0]}]?" if near else known)


def _may_own(record: PluginRecord, section: str) -> bool:
    """Return whether a section may belong to a plugin that is not loaded and so cannot declare it."""
    names = {normalize(record.name), normalize(record.distribution), normalize(record.distribution).rpartition("-")[2]}
    return record.state != "loaded" and normalize(section) in names
