"""Commands that are called otherwise now, and those whose distribution may be missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from parallax_core.base.errors import UsageError

Load = Callable[[str], Any]

OLD = {
    "complete": "chat --raw",
    "completion": "--completion",
    "plugin": "plugins",
    **{name: f"cluster {name}" for name in ("codes", "leave", "promote", "relay", "rendezvous", "plan", "profile")},
}
"""What a command is written as now; the old spelling works in version 0.1."""

SERVED = [f"models {name}" for name in ("served", "load", "unload", "switch", "forget")]
OWNERS = {
    **{name: f"parallax-{name}" for name in ("batch", "bench", "chat", "cluster", "engines", "simulate")},
    **dict.fromkeys(["join", "nodes", "run", "status", *SERVED], "parallax-cluster"),
    **dict.fromkeys(["config", "doctor", "models", "plugins"], "parallax-manage"),
    "keys": "parallax-transport-zmq",
    "models quantize": "parallax-quantize",
    "network": "parallax-netcheck",
    "plugins new": "parallax-scaffold",
}
"""The distributions of this project whose commands users look for."""


def find_old(name: str, load: Load) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Return the command for an old spelling, which prints the new one when run; None for other names.

    Args:
        name: what was typed.
        load: returns a command by its name, or None.
    """
    if name not in OLD:
        return None
    words = OLD[name].split()
    options = [word for word in words if word.startswith("-")]
    first, *rest = [word for word in words if word not in options] or [name]
    command = load(first)
    for each in rest:
        command = command and command.get_command(None, each)
    return command and _announce(command, name, options if first != name else [])


def _announce(command: Any, name: str, options: list[str]) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Return the command, run with further options, after a hint on standard error."""
    make_context = command.make_context

    def announce(info_name: str, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401
        if not extra.get("resilient_parsing"):
            print(f"hint: `parallax {name}` is now `parallax {OLD[name]}`", file=sys.stderr)
        return make_context(info_name, [*options, *args], parent, **extra)

    command.make_context = announce
    return command


def run_moved(old: str, name: str, arguments: list[str]) -> None:
    """Run the command that an option of another has become, after a hint on standard error.

    Raises:
        UsageError: if its distribution is not installed.
    """
    from parallax_core.cli import load_command

    command = load_command(name)
    if command is None:
        refuse_missing(name)
    print(f"hint: `parallax {old}` is now `parallax {name}`", file=sys.stderr)
    with command.make_context(name, arguments) as context:
        command.invoke(context)


def refuse_missing(name: str) -> None:
    """Say which distribution has a command that is not installed.

    Raises:
        UsageError: if one of this project has it.
    """
    first = OLD.get(name, "").partition(" ")[0]
    if owner := OWNERS.get(name) or OWNERS.get(first):
        raise UsageError(f"`parallax {name}` is a command of {owner}, which is not installed", f"pip install {owner}")
