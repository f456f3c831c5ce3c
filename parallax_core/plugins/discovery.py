"""Find plugins in the installed distributions, without letting one of them harm the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Literal

from parallax_core.hookspecs import PLUGIN_API

GROUP = "parallax"
API_GROUP = "parallax.api"
DISABLED_VARIABLE = "PARALLAX_PLUGINS_DISABLED"
BUILTIN = "parallax-core"

State = Literal["loaded", "disabled", "incompatible", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginRecord:
    """One plugin found on this machine, whatever became of it."""

    name: str
    distribution: str
    version: str
    module: str
    state: State
    reason: str = ""
    """Why it is not loaded; empty when it is."""
    remedy: str = ""
    """What would help; empty when it is loaded."""

    @property
    def origin(self) -> str:
        """The distribution and its version, as error messages name it."""
        return f"{self.distribution} {self.version}"


def find_plugins() -> list[EntryPoint]:
    """Return the entry points of all plugins: those of core first, the rest by name and distribution."""
    found = entry_points(group=GROUP)
    return sorted(found, key=lambda point: (_distribution(point) != BUILTIN, point.name, _distribution(point)))


def load_plugins(points: Iterable[EntryPoint]) -> Iterator[tuple[PluginRecord, ModuleType | None]]:
    """Yield a record for each plugin, with its module when it could be loaded."""
    disabled = _disabled_names()
    for point in points:
        yield _load(point, disabled)


def _load(point: EntryPoint, disabled: frozenset[str]) -> tuple[PluginRecord, ModuleType | None]:
    if point.name in disabled or _distribution(point) in disabled:
        remedy = f"take {point.name!r} out of {DISABLED_VARIABLE}"
        return _record(point, "disabled", f"named in {DISABLED_VARIABLE}", remedy), None
    if problem := _api_problem(point):
        remedy = f"install a version of {_distribution(point)} made for plugin API {PLUGIN_API}"
        return _record(point, "incompatible", problem, remedy), None
    try:
        module = import_module(point.value)
    except Exception as error:  # noqa: BLE001 -- a plugin may raise anything, and must not harm the others
        return broken(_record(point, "loaded"), error), None
    return _record(point, "loaded"), module


def broken(record: PluginRecord, error: Exception) -> PluginRecord:
    """Return ``record`` in state broken, with the error as its reason."""
    return PluginRecord(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        module=record.module,
        state="broken",
        reason=f"{type(error).__name__}: {error}",
        remedy=f"pip install --force-reinstall {record.distribution}, or report it to its authors",
    )


def _record(point: EntryPoint, state: State, reason: str = "", remedy: str = "") -> PluginRecord:
    return PluginRecord(
        name=point.name,
        distribution=_distribution(point),
        version=point.dist.version if point.dist else "?",
        module=point.value,
        state=state,
        reason=reason,
        remedy=remedy,
    )


def _api_problem(point: EntryPoint) -> str:
    stated = [
        other.name
        for other in (point.dist.entry_points if point.dist else ())
        if other.group == API_GROUP and other.value == point.value
    ]
    if not stated:
        return f"states no plugin API in entry-point group {API_GROUP!r}; this is {PLUGIN_API}"
    if str(PLUGIN_API) not in stated:
        return f"built for plugin API {', '.join(sorted(stated))}; this is {PLUGIN_API}"
    return ""


def _disabled_names() -> frozenset[str]:
    names = os.environ.get(DISABLED_VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"
