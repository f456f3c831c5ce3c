"""Finds and examines the environments in which engines are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet

from parallax_core.api import BackendPython, BackendSpec, EngineBuild, Finding, models_folder

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


def engines_folder() -> Path:
    """Return the folder of the environments of engines; it may not exist yet."""
    return models_folder().with_name("engines")


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


def find_backend_python(backend: BackendSpec) -> BackendPython | None:
    """Return the interpreter of the environment of a backend's engine; None: the engine has no environment.

    A release of the engine that the backend does not support is a fault; a missing engine is left for the worker to
    report.
    """
    if backend.engine is None or (environment := find_environment(backend.name)) is None:
        return None
    spec, name = backend.engine.load(), environment.note.backend
    version = environment.read_version(spec.distributions)
    if not version or is_supported(version, spec.supported):
        return BackendPython(path=str(environment.python))
    fault = f"{environment.folder} has {name} {version}, and the backend {name!r} supports {spec.supported}"
    remedy = f"make the environment anew: parallax engines install {name}"
    return BackendPython(path=str(environment.python), fault=fault, remedy=remedy)


def examine_engines(backends: Sequence[BackendSpec]) -> Iterator[Finding]:
    """Yield the installed and the supported releases of each backend's engine, and its environment."""
    for backend in backends:
        if backend.engine is None:
            continue
        spec, topic = backend.engine.load(), f"engine {backend.name}"
        install = f"parallax engines install {backend.name}"
        if (environment := find_environment(backend.name)) is None:
            message = f"{spec.supported} is supported, and there is no environment with it"
            is_beside = importlib.util.find_spec(spec.module) is not None
            yield Finding(topic=topic, status="ok", message=message, remedy="" if is_beside else install)
            continue
        version = environment.read_version(spec.distributions)
        message = f"{version or 'none'} ({environment.note.build}) in {environment.folder}"
        message += f"; {spec.supported} is supported"
        is_same = environment.note.core == metadata.version("parallax-core")
        if not is_same:
            message += f"; made with parallax-core {environment.note.core}"
        is_right = is_same and bool(version) and is_supported(version, spec.supported)
        status: Literal["ok", "warning"] = "ok" if is_right else "warning"
        yield Finding(topic=topic, status=status, message=message, remedy="" if is_right else install)
