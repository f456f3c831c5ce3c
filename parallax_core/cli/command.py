"""Makes the Typer application of each command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

ARGUMENTS, OPTIONS = "Arguments", "Options"
"""The headings of arguments, and of options without one of their own."""


class SectionedCommand(TyperCommand):
    """A command with help that lists options below headings, their ``rich_help_panel``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- the type is private to typer
        """Write arguments, then options by heading in the order in which the headings first occur, the others last."""
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            if (line := param.get_help_record(ctx)) is not None:
                is_argument = param.param_type_name == "argument"
                found[ARGUMENTS if is_argument else getattr(param, "rich_help_panel", None) or OPTIONS].append(line)
        first, last = (ARGUMENTS, found.pop(ARGUMENTS, [])), (OPTIONS, found.pop(OPTIONS, []))
        for heading, lines in [first, *found.items(), last]:
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


class App(typer.Typer):
    """An application whose commands have sectioned help."""

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:  # noqa: ANN401 -- as typer has it
        """Return a decorator that adds a command, as Typer does."""
        return super().command(*args, **{"cls": SectionedCommand, **options})


def new_app(summary: str | None = None, group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return an application with plain help: rich help and completion would slow every start down."""
    return App(cls=group, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, help=summary)
