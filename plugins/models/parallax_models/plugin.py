"""Registers the adapters of model families, and the parsers of their outputs, with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import ModelSpec, ParserSpec, hookimpl
from parallax_models.families import FAMILIES
from parallax_models.parsers.formats import FORMATS


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Offer an adapter, and blocks, for each family."""
    return FAMILIES


@hookimpl
def parallax_register_parsers() -> Iterable[ParserSpec]:
    """Offer a parser for each format."""
    return FORMATS
