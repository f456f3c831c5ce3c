"""The errors about models that are known to a server and not loaded, and about changing them."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError, Unavailable

NOT_LOADED_S = 10
"""Seconds after which a client may ask for an unloaded model again."""


class ModelNotLoaded(Unavailable):
    """A request needs a model that is known here, and not loaded."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, NOT_LOADED_S)


class ChangeRefused(ParallaxError):
    """A change, such as one of the models, contradicts the present state."""


def explain(error: ParallaxError) -> str:
    """Return an error with its hint as one text."""
    return f"{error.message}; {error.hint}" if error.hint else error.message
