"""The command line. Each command is imported when used, so that ``--help`` is quick; deployments are in `deploy`."""

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
from typer.core import TyperGroup
from typer.exceptions import TyperException

from parallax_core.base.errors import ParallaxError, UsageError

COMMANDS = {
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "run": "Serve a model over all machines that join.",
    "promote": "Let the standby on this machine replace its server.",
    "worker": "Run stages of a model for a server on another machine.",
    "join": "Run stages of a model for a server that gave you a join code.",
    "relay": "Forward between machines of a server that cannot reach each other.",
    "rendezvous": "Run a rendezvous where nodes with fixed layers and servers find each other.",
    "codes": "Create and revoke join codes for machines that join a server.",
    "leave": "Stop workers of this machine without losing answers.",
    "nodes": "Show the nodes of a running server and their work.",
    "status": "Show the replicas and stages of a running server.",
    "chat": "Talk to a running server in the terminal.",
    "complete": "Continue a text, in pipes.",
    "batch": "Run the requests of a file.",
    "plan": "Plan the layers of each node and predict the speed.",
    "profile": "Measure this machine for a plan.",
    "simulate": "Predict how long requests wait and take on given nodes, without starting any.",
    "models": "List, pull and remove models, and change those of a running server.",
    "engines": "Install, list and remove engines, such as vLLM.",
    "plugins": "Show the installed plugins and what they offer.",
    "plugin": "Write a plugin of your own.",
    "config": "Show every setting and its origin.",
    "completion": "Let your shell complete commands and options.",
    "doctor": "Check this machine and this installation.",
}
"""Each is a Typer application named ``app`` in the module of that name beside this one; plugins may add others."""


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 -- the type is private to typer
        """Return the names, in the order in which a new user needs them."""
        del ctx
        return list(_describe_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Import the command of that name."""
        del ctx
        command = load_command(cmd_name)
        if command is not None:
            command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the list of commands without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_describe_commands().items()))


def _describe_commands() -> dict[str, str]:
    """Return a line for each command: the built-in ones, then those of plugins, which cannot take a built-in name."""
    from parallax_core.cli.plugin_commands import describe, find_commands

    others = {name: describe(points) for name, points in find_commands().items() if name not in COMMANDS}
    return {**COMMANDS, **others}


def load_command(name: str) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Import the command of that name; return None if there is no such command."""
    from importlib import import_module

    if name in COMMANDS:
        return typer.main.get_command(import_module(f"parallax_core.cli.{name}").app)
    from parallax_core.cli import plugin_commands

    points = plugin_commands.find_commands().get(name)
    return plugin_commands.load_command(name, points) if points else None


app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"parallax {version('parallax-core')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve large language models over whatever machines you have.

    Begin with `parallax serve`, then talk to it with `parallax chat` or any OpenAI client.
    """
    del version
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

        code = _complain(*describe_error(error, _describe_commands()), error.exit_code)
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
    print(f"error: {message}", file=sys.stderr)
    if hint:
        from parallax_core.cli.pip_hint import localize_here

        print(f"hint: {localize_here(hint)}", file=sys.stderr)
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
