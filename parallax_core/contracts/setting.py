"""Settings of plugins: sections of the configuration, each typed by its plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from parallax_core.base.refs import Ref

T = TypeVar("T")


class Settings(Protocol):
    """The configuration as plugins read it."""

    def section(self, schema: type[T]) -> T:
        """Return the section declared with this dataclass, merged from flags, environment, file and defaults.

        Raises:
            ParallaxError: if no plugin declares it, or a value is invalid; the message names its origin.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsSpec:
    """Declares a section of the configuration."""

    name: str
    """The section: ``mine`` is ``[mine]`` in the file, and SECTION in the variables ``PARALLAX_SECTION__KEY``."""
    summary: str
    """One line for ``parallax plugins``."""
    schema: Ref[type[Any]]
    """A dataclass in a module without heavy imports. Its fields are the keys; each has a type and a default."""
    remedy: str = ""
    """What to do if the schema cannot be imported."""
