"""Finds the sub-commands of plugins by their metadata, and imports one when it is run."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from parallax_core.base.errors import BrokenPlugin, PluginConflict, Unsupported
from parallax_core.cli.lazy import load_app
from parallax_core.cli.module_summary import read_summary

if TYPE_CHECKING:
    from parallax_core.contracts.joining import JoinCodes
    from parallax_core.plugins.discovery import PluginRecord

GROUP = "parallax.commands"
"""The entry-point group; one below it, such as ``parallax.commands.my_tools``, names a heading of its own."""
EXTENDED = ("models", "plugins")
"""Commands with sub-commands of other plugins: ``parallax.commands.plugins`` has those of ``parallax plugins``."""
HEADING = "Commands of plugins"
"""The heading of commands without one of their own."""
CODES = "parallax.join_codes"
"""The entry-point group of a function that returns `JoinCodes`; the distribution that forms clusters has one."""

USERS = {errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS}
"""The errors of files that the user can mend, and that are no fault of a command."""

Points = Mapping[str, Sequence[EntryPoint]]


def find_commands() -> Points:
    """Return the entry points of all commands that distributions offer, by name: ``batch``, ``plugins new``."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    all_points = entry_points()
    groups = [group for group in all_points.groups if group == GROUP or group.startswith(f"{GROUP}.")]
    points = [point for group in groups for point in all_points.select(group=group)]
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        parent = point.group.removeprefix(GROUP)[1:]
        found[f"{parent} {point.name}" if parent in EXTENDED else point.name].append(point)
    return found


def list_headings(taken: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the line of each command by its name, below its heading; the heading of those without one is last.

    Args:
        taken: names that no plugin can have.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, points in find_commands().items():
        if name not in taken and " " not in name:
            found[read_heading(points[0])][name] = describe(points)
    return dict(sorted(found.items(), key=lambda each: (each[0] == HEADING, each[0])))


def list_groups() -> list[str]:
    """Return the commands that are called as the heading that lists them: its others are their sub-commands, too."""
    return [name for name, points in find_commands().items() if points[0].group == f"{GROUP}.{name}"]


def read_heading(point: EntryPoint) -> str:
    """Return the heading that lists a command: ``parallax.commands.my_tools`` has it below "My tools"."""
    return point.group.removeprefix(GROUP)[1:].replace("_", " ").capitalize() or HEADING


def describe(points: Sequence[EntryPoint]) -> str:
    """Return the help line of a command, from metadata and sources: nothing is imported.

    It is the first line of the docstring of its module, else the summary of its distribution.
    """
    if len(points) > 1:
        return f"Offered by both {' and '.join(map(_name_distribution, points))}."
    line = read_summary(points[0].module, points[0].dist) or _read_summary_of_distribution(points[0])
    return f"{line} ({_name_distribution(points[0])})" if read_heading(points[0]) == HEADING else line


def examine_command(point: EntryPoint) -> PluginRecord:
    """Return the record of a command's plugin from its metadata, without importing it."""
    from parallax_core.config.config import Config
    from parallax_core.plugins.discovery import examine, find_disabled

    return examine(point, find_disabled(Config.load()))


def load_command(name: str, points: Sequence[EntryPoint]) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Import a command.

    Raises:
        PluginConflict: if several distributions offer it, and none is preferred.
        Unsupported: if it is disabled, or made for another plugin API.
        BrokenPlugin: if it cannot be imported, or is not a Typer application.
    """
    point = choose_point(name, points)
    record = examine_command(point)
    if record.state != "loaded":
        message = f"command {name!r} of {record.origin} is {record.state}: {record.reason}"
        raise Unsupported(message, record.remedy)
    from parallax_core.plugins.discovery import break_record

    try:
        return _guard(load_app(point.value), record)
    except (Exception, SystemExit) as error:
        broken = break_record(record, error)
        message = f"command {name!r} of {broken.origin} cannot be loaded: {broken.reason}"
        raise BrokenPlugin(message, broken.remedy) from error


def extend(parent: str) -> type[TyperGroup]:
    """Return the class of one of `EXTENDED`: it has its own sub-commands, and those of plugins."""

    class Extended(TyperGroup):
        """The sub-commands; those of plugins are imported when they are run, or listed."""

        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 -- the type is private to typer
            begin = f"{parent} "
            others = [name.removeprefix(begin) for name in find_commands() if name.startswith(begin)]
            return [*super().list_commands(ctx), *others]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
            name = f"{parent} {cmd_name}"
            if command := super().get_command(ctx, cmd_name):
                return command
            if points := find_commands().get(name):
                return load_command(name, points)
            from parallax_core.cli.old_commands import refuse_missing

            return refuse_missing(name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
            own = self.commands
            self.commands: Any = {**dict.fromkeys(self.list_commands(ctx)), **own}  # typer suggests these
            try:
                return super().resolve_command(ctx, args)
            finally:
                self.commands = own

    return Extended


def choose_point(name: str, points: Sequence[EntryPoint]) -> EntryPoint:
    """Return the entry point that provides the command; those that cannot be used are skipped.

    Raises:
        PluginConflict: if several distributions offer it, and none is preferred.
    """
    if len(points) == 1:
        return points[0]
    points = [point for point in points if examine_command(point).state == "loaded"] or points
    if len(points) == 1:
        return points[0]
    from parallax_core.config.config import Config
    from parallax_core.config.plugins import PluginSettings
    from parallax_core.plugins.remedy import normalize

    wanted = normalize(Config.load().read("plugins", PluginSettings).prefer.get("command", {}).get(name, ""))
    for point in points:
        if normalize(_name_distribution(point)) == wanted:
            return point
    owners = [_name_distribution(point) for point in points]
    hint = f'choose one, with prefer.command.{name} = "{owners[0]}" in [plugins] of parallax.toml'
    raise PluginConflict(f"command {name!r} is offered by both {' and '.join(owners)}", hint)


def _guard(command: Any, record: PluginRecord) -> Any:  # noqa: ANN401 -- the type is private to typer
    """Return the command with the join codes as its ``obj``, whose unexpected exceptions name the plugin."""
    import typer
    from typer.exceptions import TyperException

    from parallax_core.base.errors import ParallaxError

    invoke = command.invoke

    def run(ctx: Any) -> Any:  # noqa: ANN401 -- the type is private to typer
        ctx.obj = open_codes()
        try:
            return invoke(ctx)
        except (ParallaxError, TyperException, typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in USERS:
                raise
            raise _blame(record, error) from error

    command.invoke = run
    return command


def open_codes() -> JoinCodes | None:
    """Return the join codes of this machine's heads; None: no installed distribution makes any."""
    points = sorted(entry_points(group=CODES), key=_name_distribution)
    codes: JoinCodes | None = points[0].load()() if points else None
    return codes


def _blame(record: PluginRecord, error: Exception) -> BrokenPlugin:
    import traceback

    from parallax_core.plugins.remedy import describe_error
    from parallax_core.plugins.trace import VARIABLE, is_tracing

    if is_tracing():
        traceback.print_exception(error)
    message = f"command {record.name!r} of {record.origin} failed: {describe_error(error)}"
    return BrokenPlugin(message, f"report it to its authors, with what {VARIABLE}=1 writes")


def _name_distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def _read_summary_of_distribution(point: EntryPoint) -> str:
    metadata = point.dist.metadata if point.dist else None
    return metadata["Summary"] if metadata and "Summary" in metadata else "A command."
