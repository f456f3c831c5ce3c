"""How every command's Typer application is made."""

from __future__ import annotations

import typer


def new_app(summary: str | None = None) -> typer.Typer:
    """Return an application with plain help: rich help and completion cost more than all else at start-up."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, help=summary)
