"""The command line. Each command is imported on use, so that ``--help`` is quick."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.cli.lazy import LazyGroup, load_app
from parallax_core.cli.plugin_commands import list_headings

COMMANDS = {"serve": "Serve a model over an OpenAI-compatible HTTP API."}
"""Each is a Typer application named ``app`` in the module of that name beside this one; others are plugins' own."""
MAIN = "Commands"
"""The heading of these commands; a plugin adds to it by the group ``parallax.commands.commands``."""
HIDDEN = ("worker", "completion")
"""Those that other programs and old habits call: they are not listed."""


class RootGroup(LazyGroup):
    """The commands of core, then those of plugins, which cannot take a name of core's."""

    def list_headings(self) -> dict[str, dict[str, str]]:
        """Return the line of each command by its name, below its heading; plugins' own heading comes last.

        Below the first heading core's come before those that plugins add.
        """
        others = list_headings({*COMMANDS, *HIDDEN})
        return {MAIN: {**COMMANDS, **others.pop(MAIN, {})}, **others}

    def load(self, name: str) -> Any:  # noqa: ANN401 -- the type is private to typer
        """Import the command of that name."""
        return load_command(name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 -- the type is private to typer
        """Import the command of that name, also by its old spelling.

        Raises:
            UsageError: if its distribution is not installed.
        """
        from parallax_core.cli.old_commands import find_old, refuse_missing

        command = find_old(cmd_name, load_command) or super().get_command(ctx, cmd_name)
        if command is None and not getattr(ctx, "resilient_parsing", True):
            refuse_missing(cmd_name)
        return command


def load_command(name: str) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Import the command of that name; return None if there is no such command."""
    if name in COMMANDS or name in HIDDEN:
        return load_app(f"parallax_core.cli.{name}:app")
    from parallax_core.cli import plugin_commands

    points = plugin_commands.find_commands().get(name)
    return plugin_commands.load_command(name, points) if points else None


def list_names() -> list[str]:
    """Return the names of all commands that can be run, but the old spellings."""
    return [*COMMANDS, *HIDDEN, *(name for lines in list_headings({*COMMANDS, *HIDDEN}).values() for name in lines)]


app = typer.Typer(cls=RootGroup, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"parallax {version('parallax-core')}")
        raise typer.Exit


def _write_completion(param: typer.CallbackParam, shell: str | None) -> None:
    if shell:
        from parallax_core.cli.completion import write_script

        write_script(shell, installs=param.name == "install_completion")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    completion: Annotated[
        str | None,
        typer.Option(
            callback=_write_completion,
            is_eager=True,
            metavar="SHELL",
            help="Print the script with which bash, zsh, fish or powershell completes commands, and exit.",
        ),
    ] = None,
    install_completion: Annotated[
        str | None,
        typer.Option(
            callback=_write_completion,
            is_eager=True,
            metavar="SHELL",
            help="Add that script to the start-up files of your shell, and exit.",
        ),
    ] = None,
) -> None:
    """Serve large language models over whatever machines you have.

    Begin with `parallax serve`, then talk to it with `parallax chat` or any OpenAI client.
    """
    del version, completion, install_completion
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command line and end the process: 0 success, 2 usage error, 130 interrupted, 1 any other error."""
    signal.signal(signal.SIGTERM, _interrupt)
    _replace_unknown()
    _prepare_completion()
    try:
        code = app(standalone_mode=False) or 0
        if sys.stdout is not None:  # None if the stream was closed before the start
            sys.stdout.flush()
    except TyperException as error:
        from parallax_core.cli.usage_hint import describe_error

        code = _complain(*describe_error(error, list_names()), error.exit_code)
    except ParallaxError as error:
        code = _complain(error.message, error.hint, 2 if isinstance(error, UsageError) else 1)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        code = 1
    except OSError as error:
        code = _complain(str(error), "the usual reason is a full disk or a missing permission", 1)
    if code:
        _silence_output()
    _leave(code)


def _prepare_completion() -> None:
    """Let Typer answer if a shell asks for completions; see `parallax_core.cli.completion`."""
    if "_PARALLAX_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def _replace_unknown() -> None:
    """Print a question mark for characters that the output's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="replace")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt


def _silence_output() -> None:
    """Discard further output: after an error it is useless, and may not be writable."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, hint: str, code: int) -> int:
    from parallax_core.base.log import write_line

    print(write_line(f"error: {message}", "ERROR"), file=sys.stderr)
    if hint:
        from parallax_core.cli.pip_hint import localize_here

        print(write_line(f"hint: {localize_here(hint)}", "ERROR"), file=sys.stderr)
    return code


def _leave(code: int) -> NoReturn:
    """End the process, even if a thread still runs a computation that cannot be interrupted.

    A server skips the interpreter's cleanup of its memory, which takes seconds on a busy machine.
    """
    is_working, has_service = any(_unfinished()), gc.get_freeze_count() > 0
    if has_service and not is_working:
        atexit._run_exitfuncs()  # noqa: SLF001 -- the part of Python's exit that does not free memory
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or full
            stream.flush()
    if is_working or has_service:
        os._exit(code)
    sys.exit(code)


def _unfinished() -> Iterator[bool]:
    return (thread is not threading.main_thread() for thread in threading.enumerate())
