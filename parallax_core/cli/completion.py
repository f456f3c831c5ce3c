"""The command ``parallax completion``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from parallax_core.cli.command import new_app

PROGRAM, VARIABLE = "parallax", "_PARALLAX_COMPLETE"
"""The name of the program, and the variable by which a shell asks it for completions."""

app = new_app()


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell.")],
    install: Annotated[bool, typer.Option("--install", help="Write it to your shell's start-up files.")] = False,
) -> None:
    """Print the script with which a shell completes commands and options, or install it.

    Without --install, nothing is changed: `source <(parallax completion bash)` tries it in the current shell.
    """
    from typer._completion_shared import get_completion_script
    from typer._completion_shared import install as write_files

    if not install:
        typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))
        return
    _, path = write_files(shell=shell, prog_name=PROGRAM, complete_var=VARIABLE)
    typer.echo(f"installed in {path}; start a new shell to use it")
