"""Reads settings from the file and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallax_core.base.errors import UsageError
from parallax_core.config.home import config_folder

FILE_NAME = "parallax.toml"
FILE_VARIABLE = "PARALLAX_CONFIG"
VARIABLE = re.compile(r"PARALLAX_([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)__([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The place where a setting is given."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    """The path of the file, the name of the variable, or the option; empty for a default."""

    def locate(self, section: str, key: str = "") -> str:
        """Return the place of a key for messages, such as ``[serve] port in parallax.toml``."""
        if self.kind == "file":
            return f"[{section}] {key} in {self.name}".replace("]  in", "] in")
        return self.name or f"the default of [{section}] {key}"


@dataclass(frozen=True, slots=True)
class WrittenSetting:
    """A value as given, before conversion, with its origin."""

    value: object
    origin: SettingOrigin


Sections = Mapping[str, Mapping[str, WrittenSetting]]


def find_file(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file: ``given``, that of ``PARALLAX_CONFIG``, one in this folder, or the user's own.

    Raises:
        UsageError: if a named file does not exist.
    """
    named, by = (given, "--config") if given else (Path(environ.get(FILE_VARIABLE, "")), FILE_VARIABLE)
    if named != Path():
        path = named.expanduser()
        if path.is_dir() or not path.exists():
            message = f"there is no configuration file {path}"
            raise UsageError(message, f"{by} names it: write the file, or name another")
        return path
    candidates = (Path(FILE_NAME), config_folder() / FILE_NAME)
    return next((path.absolute() for path in candidates if path.is_file()), None)


def read_file(path: Path) -> Sections:
    """Read a TOML file of sections.

    Raises:
        UsageError: if it cannot be read or is invalid; the message names the place.
    """
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte order mark
    except OSError as error:
        message = f"the configuration {path} cannot be read: {error.strerror or error}"
        raise UsageError(message, "check its permissions, or name another file with --config") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8, at byte {error.start}", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "see https://toml.io") from error
    origin = SettingOrigin("file", str(path))
    return {section: _read_section(section, table, origin) for section, table in found.items()}


def _read_section(section: str, table: Any, origin: SettingOrigin) -> Mapping[str, WrittenSetting]:  # noqa: ANN401 -- whatever TOML holds
    if not isinstance(table, dict):
        message = f"{section!r} in {origin.name} is outside a section"
        raise UsageError(message, f"put it below a section header, such as [serve]: {section} = ...")
    return {key: WrittenSetting(value, origin) for key, value in table.items()}


def read_environment(environ: Mapping[str, str]) -> Sections:
    """Return the settings from ``PARALLAX_SECTION__KEY`` variables; an empty one counts as not set."""
    sections: dict[str, dict[str, WrittenSetting]] = {}
    for variable, text in environ.items():
        if text and (found := VARIABLE.fullmatch(variable)):
            section, key = (part.lower() for part in found.groups())
            sections.setdefault(section, {})[key] = WrittenSetting(text, SettingOrigin("environment", variable))
    return sections


def name_variable(section: str, key: str) -> str:
    """Return the variable that sets a key."""
    return f"PARALLAX_{section}__{key}".upper()


def read_all(given: Path | None, environ: Mapping[str, str] | None = None) -> tuple[Path | None, list[Sections]]:
    """Return the file in use, if any, and the settings of the file and of the environment, in rising precedence."""
    environ = os.environ if environ is None else environ
    path = find_file(given, environ)
    return path, [read_file(path) if path else {}, read_environment(environ)]
