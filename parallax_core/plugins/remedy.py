"""Suggests remedies for errors of plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from parallax_core.base.errors import ParallaxError


def normalize(distribution: str) -> str:
    """Return the name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, ParallaxError):
        return error.message
    if isinstance(error, SystemExit):
        return f"it tried to end the process: SystemExit({error.code!r})"
    return " ".join(f"{type(error).__name__}: {error}".split())


def find_remedy(error: BaseException, distribution: str, module: str) -> str:
    """Return a remedy for an error of a plugin's ``module``, such as a dependency to install."""
    if isinstance(error, ParallaxError) and error.hint:
        return error.hint
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        if missing != re.split(r"[.:]", module)[0]:
            return f"module {missing!r} is missing: pip install {' '.join(_list_missing(distribution)) or missing}"
    return f"pip install --force-reinstall {distribution}, or report it to its authors"


def _list_missing(distribution: str) -> Iterator[str]:
    """Yield the unconditional requirements of a distribution that are not installed."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        text, _, marker = (part.strip() for part in requirement.partition(";"))
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
        if not marker and name and not _is_installed(name):
            yield name


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
