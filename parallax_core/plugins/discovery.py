"""Finds plugins in the installed distributions, and keeps a broken one from harming the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Literal

from parallax_core.config.config import Config
from parallax_core.config.plugins import PluginSettings
from parallax_core.hookspecs import PLUGIN_API
from parallax_core.plugins.output import divert_output
from parallax_core.plugins.remedy import describe_error, find_remedy, normalize

GROUP = "parallax"
API_GROUP = "parallax.api"
DISABLED_VARIABLE = "PARALLAX_PLUGINS_DISABLED"
BUILTIN = "parallax-core"

logger = logging.getLogger(__name__)

PluginState = Literal["loaded", "disabled", "incompatible", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginRecord:
    """A plugin found on this machine, loaded or not."""

    name: str
    distribution: str
    version: str
    module: str
    state: PluginState
    reason: str = ""
    """Why it is not loaded; empty if it is."""
    remedy: str = ""
    """How to fix that; empty if it is loaded."""

    @property
    def key(self) -> str:
        """A unique key: a distribution may have several plugins, and two distributions plugins of the same name."""
        return f"{self.distribution}:{self.name}"

    @property
    def origin(self) -> str:
        """The distribution and its version, for error messages."""
        return f"{self.distribution} {self.version}"


def find_plugins() -> list[EntryPoint]:
    """Return the entry points of all plugins: those of core first, the rest by name and distribution."""
    found = entry_points(group=GROUP)
    return sorted(found, key=lambda point: (_distribution(point) != BUILTIN, point.name, _distribution(point)))


def find_disabled(config: Config) -> dict[str, str]:
    """Return the normalized names of disabled plugins or distributions, each with the place of the setting."""
    written = config.sections.get("plugins", {}).get("disabled")
    place = written.origin.locate("plugins", "disabled") if written else ""
    names = os.environ.get(DISABLED_VARIABLE, "").split(",")
    return {
        **{normalize(name): place for name in config.read("plugins", PluginSettings).disabled},
        **{normalize(name.strip()): DISABLED_VARIABLE for name in names if name.strip()},
    }


def warn_mistyped(disabled: Mapping[str, str], points: Iterable[EntryPoint]) -> None:
    """Log a warning for each disabled name that is not installed but is similar to an installed one."""
    known = {normalize(name) for point in points for name in (point.name, _distribution(point))}
    for name, place in disabled.items():
        if name not in known and (near := get_close_matches(name, known, n=1)):
            logger.warning("%s names %r, but there is no such plugin; did you mean %r?", place, name, near[0])


def load_plugins(
    points: Iterable[EntryPoint], disabled: Mapping[str, str]
) -> Iterator[tuple[PluginRecord, ModuleType | None]]:
    """Yield a record for each plugin, with its module if it could be loaded."""
    for point in points:
        record = examine(point, disabled)
        yield _import(record) if record.state == "loaded" else (record, None)


def examine(point: EntryPoint, disabled: Mapping[str, str]) -> PluginRecord:
    """Return the record of a plugin from its metadata; nothing is imported."""
    record = PluginRecord(
        name=point.name,
        distribution=_distribution(point),
        version=point.dist.version if point.dist else "?",
        module=point.value,
        state="loaded",
    )
    for name in (point.name, record.distribution):
        if place := disabled.get(normalize(name)):
            return replace(record, state="disabled", reason=f"named in {place}", remedy=f"remove {name!r} from {place}")
    if problem := _find_problem(point, record.distribution):
        return replace(record, state="incompatible", reason=problem[0], remedy=problem[1])
    return record


def break_record(record: PluginRecord, error: BaseException) -> PluginRecord:
    """Return ``record`` in state broken, with the error as the reason."""
    remedy = find_remedy(error, record.distribution, record.module)
    return replace(record, state="broken", reason=describe_error(error), remedy=remedy)


def _import(record: PluginRecord) -> tuple[PluginRecord, ModuleType | None]:
    try:
        with divert_output():
            return record, import_module(record.module)
    except KeyboardInterrupt:  # the user may want to know which plugin is slow
        hint = f"{DISABLED_VARIABLE}={record.name} disables it"
        logger.warning("interrupted while plugin %r (%s) was imported; %s", record.name, record.origin, hint)
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a plugin may raise anything and must not harm the others
        return break_record(record, error), None


def _find_problem(point: EntryPoint, distribution: str) -> tuple[str, str] | None:
    """Return why the plugin is incompatible with this core, and the remedy; None if it is compatible."""
    stated = _list_versions(point)
    if str(PLUGIN_API) in stated or (point.group != GROUP and not stated):  # a command need not use the API
        return None
    if not stated:
        reason = f"states no plugin API in entry-point group {API_GROUP!r}; this is {PLUGIN_API}"
        return reason, f"install a version of {distribution} that states it, or report it to its authors"
    reason = f"built for plugin API {', '.join(stated)}; this is {PLUGIN_API}"
    is_newer = all(each.isdigit() and int(each) > PLUGIN_API for each in stated)
    install = f"install a version of {distribution} made for plugin API {PLUGIN_API}"
    return reason, f"update {BUILTIN}, or {install}" if is_newer else install


def _list_versions(point: EntryPoint) -> list[str]:
    """Return the plugin API versions stated for a plugin's module or its package, or for a command's distribution."""
    found = [each for each in (point.dist.entry_points if point.dist else ()) if each.group == API_GROUP]
    return sorted(
        {each.name for each in found if point.group != GROUP or f"{point.value}.".startswith(f"{each.value}.")}
    )


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"
