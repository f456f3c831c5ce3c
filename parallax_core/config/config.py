"""Merges settings from flags, the environment, the file and defaults, in this order of precedence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from parallax_core.base.errors import UsageError
from parallax_core.config.schema import Key, list_keys
from parallax_core.config.source import Sections, SettingOrigin, WrittenSetting, name_variable, read_all
from parallax_core.config.value import HIDDEN, read_value

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A key with its value, to show to users."""

    section: str
    key: Key
    value: object
    origin: SettingOrigin

    @property
    def shown(self) -> object:
        """The value in JSON types; of a secret, only whether it is set."""
        return HIDDEN if self.key.is_secret and self.value else _simplify(self.value)


@dataclass(frozen=True, slots=True)
class Config:
    """All given settings, by section and key. Values are converted to their types when a section is read."""

    sections: Mapping[str, Mapping[str, WrittenSetting]] = field(default_factory=dict)
    file: Path | None = None
    """The file in use."""

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """Read the file, as `parallax_core.config.source.find_file` finds it, and the environment.

        Raises:
            UsageError: if a named file does not exist, or the file is not valid TOML.
        """
        path, sources = read_all(file, environ)
        return cls(_merge(sources), path)

    def override(self, sections: Sections) -> Config:
        """Return a configuration in which ``sections`` come before all that is given here."""
        return Config(_merge([self.sections, sections]), self.file)

    def read(self, section: str, schema: type[T], flags: Mapping[str, object] | None = None) -> T:
        """Return a section as an object of its type; ``flags`` override all other values.

        Raises:
            UsageError: if a key is unknown or its value invalid; the message names the place.
            BrokenPlugin: if ``schema`` is not a dataclass with a default for each field.
        """
        keys = list_keys(schema)
        given = self.sections.get(section, {})
        values = {
            name: read_value(section, _find_key(section, name, written, keys), written)
            for name, written in given.items()
        }
        try:
            return schema(**{**values, **(flags or {})})
        except ValueError as error:  # raised by the schema's own check
            places = [written.origin.locate(section, name) for name, written in given.items()]
            places += [f"--{name.replace('_', '-')}" for name in flags or {}]
            raise UsageError(f"[{section}]: {error}", f"set by: {', '.join(places)}") from error

    def explain(self, section: str, schema: type[Any]) -> list[Setting]:
        """Return every key of a section with its value and the value's origin.

        Raises:
            UsageError: as `read` does.
        """
        found, given = self.read(section, schema), self.sections.get(section, {})
        return [
            Setting(section=section, key=key, value=getattr(found, name), origin=_find_origin(given, name))
            for name, key in list_keys(schema).items()
        ]


def _find_origin(given: Mapping[str, WrittenSetting], name: str) -> SettingOrigin:
    return given[name].origin if name in given else SettingOrigin("default")


def _find_key(section: str, name: str, written: WrittenSetting, keys: Mapping[str, Key]) -> Key:
    if name in keys:
        return keys[name]
    near = get_close_matches(name.replace("-", "_"), keys, n=1)
    message = f"{written.origin.locate(section, name)}: there is no such setting"
    if not near:
        raise UsageError(message, f"[{section}] has: {', '.join(keys)}")
    meant = name_variable(section, near[0]) if written.origin.kind == "environment" else repr(near[0])
    raise UsageError(message, f"did you mean {meant}?")


def _merge(sources: Sequence[Sections]) -> dict[str, dict[str, WrittenSetting]]:
    merged: dict[str, dict[str, WrittenSetting]] = {}
    for source in sources:
        for section, values in source.items():
            merged.setdefault(section, {}).update(values)
    return merged


def _simplify(value: object) -> object:
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _simplify(each) for name, each in value.items()}
    return [_simplify(each) for each in value] if isinstance(value, Sequence | frozenset | set) else repr(value)
