"""Groups of commands, each of which is imported when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from parallax_core.cli.command import new_app


class LazyGroup(TyperGroup):
    """A group that knows its commands by a line of help each, and imports one only to run it."""

    def list_headings(self) -> Mapping[str, Mapping[str, str]]:
        """Return the line of each command by its name, below the heading that lists it."""
        raise NotImplementedError

    def load(self, name: str) -> Any:  # noqa: ANN401 -- the type is private to typer
        """Import the command of that name; None: there is no such command."""
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        """Return the names in the order of `list_headings`."""
        del ctx
        return [name for lines in self.list_headings().values() for name in lines]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Import the command of that name."""
        del ctx
        command = self.load(cmd_name)
        if command is not None:
            command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Find the command that was typed; the error for one that is not there names those like it."""
        self.commands: Any = dict.fromkeys(self.list_commands(ctx))  # typer suggests these
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the list of commands without importing any."""
        del ctx
        for heading, lines in self.list_headings().items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(list(lines.items()))


def lazy_app(summary: str, commands: Mapping[str, tuple[str, str]]) -> typer.Typer:
    """Return an application with sub-commands that are imported when they are run.

    Args:
        summary: its help.
        commands: by name, a line of help and the place of its application, as ``package.module:app``.
    """

    class Commands(LazyGroup):
        """The sub-commands."""

        def list_headings(self) -> Mapping[str, Mapping[str, str]]:
            return {"Commands": {name: line for name, (line, _) in commands.items()}}

        def load(self, name: str) -> Any:  # noqa: ANN401
            return load_app(commands[name][1]) if name in commands else None

    app = new_app(summary, Commands)

    @app.callback(invoke_without_command=True)
    def start(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())

    return app


def load_app(place: str) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Import the application at ``package.module:attribute``, and return its command.

    Raises:
        TypeError: if there is something else.
    """
    module, _, attribute = place.partition(":")
    app = getattr(import_module(module), attribute or "app")
    if not isinstance(app, typer.Typer):
        raise TypeError(f"{place} is no typer.Typer")
    return typer.main.get_command(app)
