"""Finds the sub-commands of plugins by their metadata, and imports one when it is run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from parallax_core.base.errors import BrokenPlugin, PluginConflict, Unsupported

if TYPE_CHECKING:
    from parallax_core.plugins.discovery import PluginRecord

GROUP = "parallax.commands"

Points = Mapping[str, Sequence[EntryPoint]]


def find_commands() -> Points:
    """Return the entry points of all commands that distributions offer, by name."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, _name_distribution(each))):
        found[point.name].append(point)
    return found


def describe(points: Sequence[EntryPoint]) -> str:
    """Return the help line of a command: the summary of its distribution."""
    owners = [_name_distribution(point) for point in points]
    if len(owners) > 1:
        return f"Offered by both {' and '.join(owners)}."
    metadata = points[0].dist.metadata if points[0].dist else None
    summary = metadata["Summary"] if metadata and "Summary" in metadata else "A command."
    return f"{summary} ({owners[0]})"


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
    import typer

    from parallax_core.plugins.discovery import break_record

    try:
        return _guard(typer.main.get_command(_find_app(point)), record)
    except (Exception, SystemExit) as error:
        broken = break_record(record, error)
        message = f"command {name!r} of {broken.origin} cannot be loaded: {broken.reason}"
        raise BrokenPlugin(message, broken.remedy) from error


def _find_app(point: EntryPoint) -> Any:  # noqa: ANN401 -- checked here
    import typer

    module, _, attribute = point.value.partition(":")
    app = getattr(import_module(module), attribute or "app")
    if not isinstance(app, typer.Typer):
        raise TypeError(f"{point.value} is no typer.Typer")
    return app


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
    from parallax_core.config.home import cluster_file
    from parallax_core.node.membership.code_store import CodeStore

    invoke = command.invoke

    def run(ctx: Any) -> Any:  # noqa: ANN401 -- the type is private to typer
        ctx.obj = CodeStore(cluster_file())
        try:
            return invoke(ctx)
        except (ParallaxError, TyperException, typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            raise _blame(record, error) from error

    command.invoke = run
    return command


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
