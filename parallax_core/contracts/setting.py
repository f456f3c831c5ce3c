"""Settings of plugins: a section of the configuration, typed by the plugin whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from parallax_core.base.refs import Ref

T = TypeVar("T")


class Settings(Protocol):
    """What is configured, as plugins see it."""

    def section(self, schema: type[T]) -> T:
        """Return the section that was declared with this dataclass: flags, environment, file and defaults as one.

        Raises:
            ParallaxError: if no plugin declares it, or a value in it is wrong; the message says where.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsSpec:
    """Declares a section of the configuration."""

    name: str
    """The section: ``mine`` is ``[mine]`` in the file, and the SECTION of a variable in the environment."""
    summary: str
    """One line for ``parallax plugins``."""
    schema: Ref[type[Any]]
    """A dataclass in a module that imports nothing heavy. Its fields are the keys; each has a type and a default."""
    remedy: str = ""
    """What to do when the schema cannot be imported."""
