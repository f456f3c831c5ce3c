"""The supported releases of SGLang, and the installed one. Imports no SGLang."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

LOWEST = (0, 5, 18)
"""The oldest supported release."""
BEYOND = (0, 5, 24)
"""The first release that is too new."""
REMEDY = "parallax engines install sglang"


def describe_supported() -> str:
    """Return the supported releases, as in ``>=0.5.18,<0.5.24``."""
    lowest, beyond = (".".join(map(str, release)) for release in (LOWEST, BEYOND))
    return f">={lowest},<{beyond}"


def find_installed() -> str:
    """Return the version of SGLang in this environment; empty if it is not installed."""
    if find_spec("sglang") is None:
        return ""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def explain_unsupported(version: str) -> str:
    """Return why a release cannot be used, such as ``0.5.23.post1``; empty: it can."""
    if not version:
        return "sglang is not installed"
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is not None and LOWEST <= tuple(map(int, numbers.groups())) < BEYOND:
        return ""
    return f"sglang {version} is installed, and parallax-backend-sglang supports {describe_supported()}"
