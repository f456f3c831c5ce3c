"""Converts the errors of a stage to and from messages."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parallax_backend_sglang.stage_frames import Raised
from parallax_core.api import BackendFailed, OutOfPages, ParallaxError, SeqId, StageLost, Unsupported

WITH_HINT: Mapping[str, type[ParallaxError]] = {
    "Unsupported": Unsupported,
    "StageLost": StageLost,
    "ParallaxError": ParallaxError,
}
"""The errors that are a message and a hint, by name."""
BUILT_IN: Mapping[str, type[Exception]] = {"KeyError": KeyError, "ValueError": ValueError}
"""The errors that are a message, by name."""


def pack_error(error: Exception) -> Raised:
    """Return the message for an error of a stage; any that the contract of stages lacks becomes `BackendFailed`."""
    match error:
        case OutOfPages():
            return Raised("OutOfPages", error.message, error.hint, (error.needed, error.free))
        case BackendFailed():
            return Raised("BackendFailed", error.message, error.hint, tuple(map(int, error.sequences)))
        case ParallaxError():
            name = next((name for name, kind in WITH_HINT.items() if isinstance(error, kind)), "ParallaxError")
            return Raised(name, error.message, error.hint)
        case msgspec.ValidationError():
            return Raised("ValueError", str(error))
        case KeyError() | ValueError():
            name = next(name for name, kind in BUILT_IN.items() if isinstance(error, kind))
            return Raised(name, str(error.args[0]) if error.args else "")
    return Raised("BackendFailed", f"{type(error).__name__}: {error}")


def unpack_error(raised: Raised) -> Exception:
    """Return the error in a message."""
    if raised.kind == "OutOfPages":
        needed, free = raised.numbers
        return OutOfPages(needed, free)
    if raised.kind in WITH_HINT:
        return WITH_HINT[raised.kind](raised.message, raised.hint)
    if raised.kind in BUILT_IN:
        return BUILT_IN[raised.kind](raised.message)
    return BackendFailed(raised.message, raised.hint, map(SeqId, raised.numbers))
