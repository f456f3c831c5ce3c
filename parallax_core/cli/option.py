"""Makes a command's options from a section: one list for flags, file and environment."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from parallax_core.config.config import Config
from parallax_core.config.schema import Key, is_sequence, list_keys, strip_type

T = TypeVar("T")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="The configuration; see `parallax config`.", metavar="FILE"),
]


def from_section(section: str, schema: type[T]) -> Callable[[Callable[[T, Config], None]], Callable[..., None]]:
    """Return a decorator that turns a function of a section and the whole configuration into a command.

    Every key of ``schema`` becomes an option, which overrides the configured value.
    """
    keys = list_keys(schema)

    def decorate(run: Callable[[T, Config], None]) -> Callable[..., None]:
        def command(ctx: typer.Context, config: Path | None, **given: Any) -> None:  # noqa: ANN401 -- of any type
            loaded = Config.load(config)
            flags = {name: _take(keys[name], value) for name, value in given.items() if _is_given(ctx, name)}
            run(loaded.read(section, schema, flags), loaded)

        parameters = [
            Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(_make_parameter(key) for key in keys.values()),
            Parameter("config", Parameter.KEYWORD_ONLY, annotation=ConfigFile, default=None),
        ]
        vars(command)["__signature__"] = Signature(parameters)  # typer reads it
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return decorate


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _take(key: Key, value: Any) -> Any:  # noqa: ANN401 -- of any type
    return tuple(value) if is_sequence(strip_type(key.type)) else value


def _make_parameter(key: Key) -> Parameter:
    extra, plain = key.meta.extra or {}, strip_type(key.type)
    bounds = {"min": key.meta.ge, "max": key.meta.le}
    shown: dict[str, Any] = {"help": key.description, "metavar": extra.get("metavar"), **bounds}
    if extra.get("is_argument"):
        option = typer.Argument(**shown)
    else:
        names = _name_option(key, is_switch=plain is bool)
        option = typer.Option(*names, **shown, show_default=plain is not bool)
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    return Parameter(key.name, Parameter.KEYWORD_ONLY, annotation=Annotated[_shape(key), option], default=default)


def _shape(key: Key) -> Any:  # noqa: ANN401 -- a type of any kind
    """Return the type of a key for typer."""
    plain = strip_type(key.type)
    if is_sequence(plain):
        return list.__class_getitem__(get_args(plain)[0])
    return plain | None if key.default is None else plain


def _name_option(key: Key, *, is_switch: bool) -> list[str]:
    """Return the names of an option; a switch also has a name that turns it off, since a file may turn it on."""
    name, short = key.name.replace("_", "-"), (key.meta.extra or {}).get("short")
    long = f"--{name}/--no-{name}" if is_switch else f"--{name}"
    return [long, short] if short else [long]
