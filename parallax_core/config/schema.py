"""Reads the keys of a configuration section from the dataclass that declares it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from parallax_core.base.errors import BrokenPlugin

SECRET = re.compile(r"(^|_)(key|token|secret|password)$")
"""Names of text keys whose values are never shown; keys marked as secret are not shown either."""

WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", Path: "a path"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    type: Any
    """The annotated type, with its `msgspec.Meta`."""
    default: object
    meta: Meta

    @property
    def extra(self) -> Mapping[str, Any]:
        """What else is said of it: ``metavar``, ``short``, ``heading``, ``advanced``, ``is_argument``, ``secret``."""
        return self.meta.extra or {}

    @property
    def is_advanced(self) -> bool:
        """Whether commands do not list an option for it: ``--set``, the file and the environment give it."""
        return bool(self.extra.get("advanced"))

    @property
    def written(self) -> Any:  # noqa: ANN401 -- a type of any kind
        """The type of a given value: the annotated type without None."""
        return _drop_none(self.type)

    @property
    def description(self) -> str:
        """One line of help; may be empty."""
        return self.meta.description or ""

    @property
    def expected(self) -> str:
        """A description of valid values, such as ``an integer from 0 to 65535``."""
        return describe_type(self.type)

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        named = bool(SECRET.search(self.name)) and describe_type(self.type) == WORDS[str]
        return bool(self.extra.get("secret", named))


def list_keys(schema: type[Any]) -> dict[str, Key]:
    """Return the keys of a section by name: first those of its own, then those that it shares with others.

    Raises:
        BrokenPlugin: if ``schema`` is not a dataclass, or one of its fields has no default.
    """
    if not dataclasses.is_dataclass(schema):
        raise BrokenPlugin(f"{schema!r} is not a dataclass, so its keys are unknown", "report it to its authors")
    types = get_type_hints(schema, include_extras=True)
    own = inspect.get_annotations(schema)
    fields = sorted(dataclasses.fields(schema), key=lambda field: field.name not in own)
    keys = [_make_key(schema, field, types[field.name]) for field in fields]
    return {key.name: key for key in keys}


def _make_key(schema: type[Any], field: dataclasses.Field[Any], annotated: Any) -> Key:  # noqa: ANN401 -- a type of any kind
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        default = field.default
    else:
        message = f"{field.name!r} of {schema.__qualname__} has no default; every setting needs one"
        raise BrokenPlugin(message, "report it to its authors")
    metas = [each for each in get_args(annotated)[1:] if isinstance(each, Meta)]
    first = metas[0] if metas else Meta()
    extra = {name: value for each in metas for name, value in (each.extra or {}).items()}
    meta = Meta(description=first.description, ge=first.ge, le=first.le, extra=extra or None)
    return Key(name=field.name, type=annotated, default=default, meta=meta)


def strip_type(annotated: Any) -> Any:  # noqa: ANN401 -- a type of any kind
    """Return a type without its annotations and without None."""
    if get_origin(annotated) is Annotated:
        return strip_type(get_args(annotated)[0])
    if get_origin(annotated) in {Union, UnionType}:
        kept = [each for each in get_args(annotated) if each is not NoneType]
        return strip_type(kept[0]) if len(kept) == 1 else annotated
    return annotated


def _drop_none(annotated: Any) -> Any:  # noqa: ANN401 -- a type of any kind
    """Return a type without None; msgspec checks bounds only then."""
    if get_origin(annotated) is Annotated:
        inner, *notes = get_args(annotated)
        return Annotated[(_drop_none(inner), *notes)]
    if get_origin(annotated) in {Union, UnionType}:
        return Union[tuple(each for each in get_args(annotated) if each is not NoneType)]  # noqa: UP007 -- made of a tuple
    return annotated


def is_sequence(plain: Any) -> bool:  # noqa: ANN401 -- a type of any kind
    """Return whether values of the type are lists."""
    origin = get_origin(plain)
    return isinstance(origin, type) and issubclass(origin, Sequence | frozenset | set)


def is_mapping(plain: Any) -> bool:  # noqa: ANN401 -- a type of any kind
    """Return whether values of the type are tables."""
    origin = get_origin(plain)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def describe_type(annotated: Any) -> str:  # noqa: ANN401 -- a type of any kind
    """Describe the values of a type, such as ``an integer from 0 to 65535``."""
    plain = strip_type(annotated)
    if get_origin(plain) is Literal:
        return f"one of {', '.join(map(str, get_args(plain)))}"
    if is_sequence(plain):
        return f"a list, each item {describe_type(get_args(plain)[0])}"
    if is_mapping(plain):
        name, value = map(describe_type, get_args(plain))
        return f"a table, each name {name}, each value {value}"
    word = WORDS.get(plain, getattr(plain, "__name__", str(plain)))
    return word + _describe_bounds(annotated)


def _describe_bounds(annotated: Any) -> str:  # noqa: ANN401 -- a type of any kind
    metas = [each for each in get_args(annotated)[1:] if isinstance(each, Meta)]
    low = next((meta.ge for meta in metas if meta.ge is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    match low, high:
        case None, None:
            return ""
        case _, None:
            return f" of at least {low:.12g}"
        case None, _:
            return f" of at most {high:.12g}"
    return f" from {low:.12g} to {high:.12g}"
