"""Completes commands in a shell: ``parallax --completion SHELL``, also in its old spelling."""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

import typer

from parallax_core.base.errors import UsageError
from parallax_core.cli.command import new_app

PROGRAM, VARIABLE = "parallax", "_PARALLAX_COMPLETE"
"""The name of the program, and the variable by which a shell asks it for completions."""
Shell = Literal["bash", "zsh", "fish", "powershell"]

app = new_app()


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.")],
    install: Annotated[bool, typer.Option("--install", help="Write it to your shell's start-up files.")] = False,
) -> None:
    """Print the script with which a shell completes commands and options, or install it."""
    write_script(shell, installs=install)


def write_script(shell: str, *, installs: bool) -> None:
    """Print the script with which a shell completes commands and options, or add it to its start-up files.

    Raises:
        UsageError: if it is another shell.
    """
    from typer._completion_shared import get_completion_script, install

    if shell not in get_args(Shell):
        raise UsageError(f"{shell!r} is no shell that can complete", f"name one of: {', '.join(get_args(Shell))}")
    if not installs:
        typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=cast("Shell", shell)))
        return
    _, path = install(shell=cast("Shell", shell), prog_name=PROGRAM, complete_var=VARIABLE)
    typer.echo(f"installed in {path}; start a new shell to use it")
