"""Finds the environments in which engines are installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.specifiers import SpecifierSet

from parallax_core.config.home import engines_folder
from parallax_core.contracts.engine_spec import EngineBuild

NOTE = "parallax-engine.json"
"""The file that is written into an environment once it is complete."""


class EngineNote(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `NOTE`."""

    backend: str
    build: EngineBuild
    core: str
    """The version of parallax-core that was installed."""


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """The environment of an engine, which belongs to one backend."""

    folder: Path
    note: EngineNote

    @property
    def python(self) -> Path:
        """The interpreter."""
        return find_python(self.folder)

    def read_version(self, distributions: Sequence[str]) -> str:
        """Return the version of the first of ``distributions`` that is installed there; empty: none is."""
        return next((found.version for name in distributions if (found := find_distribution(self.folder, name))), "")


def is_supported(version: str, supported: str) -> bool:
    """Return whether a release of an engine, such as ``0.32.0+cpu``, is one of `EngineSpec.supported`."""
    return SpecifierSet(supported).contains(version, prereleases=True)


def find_python(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / "bin" / "python"


def find_distribution(folder: Path, name: str) -> metadata.Distribution | None:
    """Return the metadata of a distribution in a virtual environment; None: it is not installed there."""
    places = [str(path) for path in folder.glob("lib*/python3*/site-packages")]
    return next(iter(metadata.distributions(name=name, path=places)), None)


def find_environment(backend: str) -> EngineEnvironment | None:
    """Return the environment of a backend's engine, or None if it is missing or incomplete."""
    folder = engines_folder() / backend
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=EngineNote)
    except (OSError, msgspec.DecodeError):
        return None
    return EngineEnvironment(folder, note) if find_python(folder).exists() else None
