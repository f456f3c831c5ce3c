"""Makes a command's options from a section: one list for flags, file and environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from parallax_core.base.errors import UsageError
from parallax_core.base.log import choose_format
from parallax_core.cli.tell import tell
from parallax_core.config.config import Config
from parallax_core.config.schema import Key, is_sequence, list_keys, strip_type
from parallax_core.config.source import SettingOrigin, WrittenSetting

T = TypeVar("T")

SWITCHES = "parallax.switches"
"""The entry-point group of what plugins have commands switch off; the name of the command's section follows."""

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="The configuration; see `parallax config`.", metavar="FILE"),
]


def from_section(section: str, schema: type[T]) -> Callable[[Callable[[T, Config], None]], Callable[..., None]]:
    """Return a decorator that turns a function of a section and the whole configuration into a command.

    Every key of ``schema`` becomes an option, which overrides the configured value. One that is marked as advanced is
    not listed: ``--set KEY=VALUE`` gives it, and the option of its name still works, with a hint.
    """
    keys = list_keys(schema)
    switches = list_switches(section, keys)

    def decorate(run: Callable[[T, Config], None]) -> Callable[..., None]:
        def command(ctx: typer.Context, config: Path | None, settings: list[str], **given: Any) -> None:  # noqa: ANN401 -- of any type
            switched = read_switches(switches, {name: given.pop(name) for name in switches})
            loaded = Config.load(config).override(read_settings(section, settings)).override(switched)
            flags = {name: _take(keys[name], value) for name, value in given.items() if _is_given(ctx, name)}
            found = loaded.read(section, schema, flags)
            choose_format(getattr(found, "log_format", None))
            _announce([key for name, key in keys.items() if name in flags and key.is_advanced])
            run(found, loaded.override({section: {name: _write(keys[name], value) for name, value in flags.items()}}))

        parameters = [
            Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(_make_parameter(key) for key in keys.values()),
            *(_make_switch(name) for name in switches),
            Parameter("settings", Parameter.KEYWORD_ONLY, annotation=_make_set(section), default=[]),
            Parameter("config", Parameter.KEYWORD_ONLY, annotation=ConfigFile, default=None),
        ]
        vars(command)["__signature__"] = Signature(parameters)  # typer reads it
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return decorate


def read_settings(section: str, given: Sequence[str]) -> dict[str, dict[str, WrittenSetting]]:
    """Return the settings in texts ``KEY=VALUE``, of ``section``, or ``SECTION.KEY=VALUE``; the last of each counts.

    Raises:
        UsageError: if a text has another form.
    """
    found: dict[str, dict[str, WrittenSetting]] = {section: {}}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text} is not KEY=VALUE", "such as --set max_waiting=100")
        *other, name = key.strip().replace("-", "_").split(".", 1)
        place = "".join(f"{each}." for each in other)
        written = WrittenSetting(value, SettingOrigin("flag", f"--set {place}{name}"))
        found.setdefault(other[0] if other else section, {})[name] = written
    return found


def list_switches(section: str, keys: Collection[str]) -> list[str]:
    """Return the sections of plugins that a command switches off as a whole, other than what it has options for.

    A distribution names them as entry points: ``web`` in the group ``parallax.switches.serve`` has ``--no-web`` set
    ``enabled`` of ``[web]`` to false. Nothing is imported for that.
    """
    return sorted({point.name for point in entry_points(group=f"{SWITCHES}.{section}")} - set(keys))


def read_switches(names: Iterable[str], given: Mapping[str, bool | None]) -> dict[str, dict[str, WrittenSetting]]:
    """Return the sections in which switches that are given set ``enabled``."""
    found = {}
    for name in names:
        if (is_on := given[name]) is not None:
            flag = f"--{'' if is_on else 'no-'}{name.replace('_', '-')}"
            found[name] = {"enabled": WrittenSetting(is_on, SettingOrigin("flag", flag))}
    return found


def _announce(keys: Sequence[Key]) -> None:
    """Say of options that are not listed how they are written now."""
    for key in keys:
        tell(f"hint: `{_name_flag(key)}` is now `--set {key.name}=VALUE`", sys.stderr)


def _make_set(section: str) -> Any:  # noqa: ANN401 -- an annotation
    text = (
        f"Set another key of [{section}], as `parallax config {section}` lists them, or SECTION.KEY of another section."
    )
    return Annotated[list[str], typer.Option("--set", help=text, metavar="KEY=VALUE", show_default=False)]


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _take(key: Key, value: Any) -> Any:  # noqa: ANN401 -- of any type
    return tuple(value) if is_sequence(strip_type(key.type)) else value


def _make_switch(name: str) -> Parameter:
    flag = name.replace("_", "-")
    option = typer.Option(f"--{flag}/--no-{flag}", hidden=True)
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[bool | None, option], default=None)


def _write(key: Key, value: Any) -> WrittenSetting:  # noqa: ANN401 -- of any type
    """Return the value of an option as a setting that a file could have."""
    plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return WrittenSetting(plain, SettingOrigin("flag", _name_flag(key)))


def _make_parameter(key: Key) -> Parameter:
    extra, plain = key.extra, strip_type(key.type)
    bounds = {"min": key.meta.ge, "max": key.meta.le}
    shown: dict[str, Any] = {"help": key.description, "metavar": extra.get("metavar"), **bounds}
    if extra.get("is_argument"):
        option = typer.Argument(**shown)
    else:
        names = _name_option(key, is_switch=plain is bool)
        shown |= {"hidden": key.is_advanced, "rich_help_panel": extra.get("heading")}
        option = typer.Option(*names, **shown, show_default=plain is not bool)
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    return Parameter(key.name, Parameter.KEYWORD_ONLY, annotation=Annotated[_shape(key), option], default=default)


def _shape(key: Key) -> Any:  # noqa: ANN401 -- a type of any kind
    """Return the type of a key for typer."""
    plain = strip_type(key.type)
    if is_sequence(plain):
        return list.__class_getitem__(get_args(plain)[0])
    return plain | None if key.default is None else plain


def _name_flag(key: Key) -> str:
    return f"--{key.name.replace('_', '-')}"


def _name_option(key: Key, *, is_switch: bool) -> list[str]:
    """Return the names of an option; a switch also has a name that turns it off, since a file may turn it on."""
    name, short = _name_flag(key), key.extra.get("short")
    long = f"{name}/--no-{name[2:]}" if is_switch else name
    return [long, short] if short else [long]
