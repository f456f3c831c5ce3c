"""The error for what cannot be converted."""

from __future__ import annotations

from parallax_core.api import Unsupported
from parallax_source_pypi.architectures import NAMES


def refuse(what: str) -> Unsupported:
    """Return the error for a model that cannot be converted exactly."""
    hint = f"GGUF files of these architectures are read: {', '.join(NAMES)}; serve another model from its own files"
    return Unsupported(f"{what} cannot be converted", hint)
