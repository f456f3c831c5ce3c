"""Settings of plugins: sections of the configuration, each typed by its plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from parallax_core.base.refs import Ref

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSetting:
    """A setting as its operator sees it."""

    section: str
    key: str
    value: object
    """In JSON types; of a secret, only whether it is set."""
    origin: Literal["default", "file", "environment", "flag"]
    place: str
    """The path of the file, the name of the variable, or the option; empty for a default."""
    expected: str
    """A description of valid values, such as ``an integer from 0 to 65535``."""
    description: str
    """One line of help; may be empty."""
    is_secret: bool


class Settings(Protocol):
    """The configuration as plugins read it."""

    @property
    def file(self) -> Path | None:
        """The configuration file in use; None: no file."""

    def section(self, schema: type[T]) -> T:
        """Return the section declared with this dataclass, merged from flags, environment, file and defaults.

        Raises:
            ParallaxError: if no plugin declares it, or a value is invalid; the message names its origin.
        """

    def explain(self, section: str | None = None) -> Sequence[ShownSetting]:
        """Return every setting of a section, or of all sections, core's first, with its origin.

        Raises:
            ParallaxError: if no plugin declares the section, or a value is invalid.
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
