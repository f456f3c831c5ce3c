"""Makes the Typer application of each command."""

from __future__ import annotations

import typer
from typer.core import TyperGroup


def new_app(summary: str | None = None, group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return an application with plain help: rich help and completion would slow every start down."""
    return typer.Typer(
        cls=group, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, help=summary
    )
