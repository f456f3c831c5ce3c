"""Describes the plugin API as data (hooks and names of `parallax_core.api`), and finds changes that break plugins."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NewType, get_args

import msgspec

from parallax_core import api, hookspecs

Facts = dict[str, Any]

GIVEN = {"Admission", "ForwardedAnswer", "HttpSurface", "Progress", "Settings"}
"""Protocols that core implements and plugins use; an additional member breaks no plugin."""

NAMED_LATER = {
    "PoolKind": "Literal['full', 'window', 'latent', 'state']",
    "Mapping[tuple[PoolKind, int], int]": "Mapping[tuple[Kind, int], int]",
}
"""Types that got a name after the record was made, with their older spelling in the record."""

REQUIRED = "required"


def describe_api() -> Facts:
    """Return the description of the plugin API, without provisional names."""
    names = sorted(set(api.__all__) - api.PROVISIONAL - {"PLUGIN_API"})
    return {"hooks": describe_hooks(), "names": {name: describe(getattr(api, name)) for name in names}}


def describe_hooks() -> Facts:
    """Return each hook with its signature and call options."""
    found = {}
    for name, function in vars(hookspecs).items():
        options = getattr(function, "parallax_spec", None)
        if options:
            flags = {flag: bool(options[flag]) for flag in ("historic", "firstresult")}
            found[name] = {**describe_function(function), **flags}
    return found


def describe(value: Any) -> Facts:
    """Return the facts about one name."""
    if isinstance(value, NewType):
        return {"kind": "alias", "of": [value.__supertype__.__name__]}
    if isinstance(value, type):
        return describe_class(value)
    if inspect.isfunction(value):
        return {"kind": "function", **describe_function(value)}
    if members := get_args(value):
        return {"kind": "alias", "of": [name_type(each) for each in members]}
    return {"kind": "constant", "type": type(value).__name__}


def describe_class(owner: type[Any]) -> Facts:
    """Return the facts about a class: a record with fields, a protocol, or another class."""
    members = list_members(owner)
    fields: Sequence[Any] = ()
    if dataclasses.is_dataclass(owner):
        fields = dataclasses.fields(owner)
    elif issubclass(owner, msgspec.Struct):
        fields = msgspec.structs.fields(owner)
    if fields:
        is_named = all(getattr(field, "kw_only", False) for field in fields)
        found = {field.name: describe_field(owner, field) for field in fields}
        return {"kind": "record", "keywords": is_named, "fields": found, "members": members}
    if getattr(owner, "_is_protocol", False):
        return {"kind": "protocol", "members": members}
    return {"kind": "class", "bases": [base.__name__ for base in owner.__bases__], "members": members}


def describe_field(owner: type[Any], field: Any) -> Facts:
    """Return the type of a field, as written in the source, and its default."""
    written = next(filter(None, (vars(base).get("__annotations__", {}).get(field.name) for base in owner.__mro__)))
    for missing in (dataclasses.MISSING, msgspec.NODEFAULT):
        if field.default is not missing:
            continue
        factory = field.default_factory
        return {"type": name_type(written), "default": REQUIRED if factory is missing else f"{factory.__name__}()"}
    return {"type": name_type(written), "default": describe_default(field.default)}


def describe_default(value: Any) -> str:
    """Return a text for a default that is the same in every process."""
    return value.__qualname__ if callable(value) else repr(value)


def describe_function(function: Any) -> Facts:
    """Return the parameters of a function, in order, and its return type."""
    signature = inspect.signature(function)
    parameters = {each.name: describe_parameter(each) for each in signature.parameters.values() if each.name != "self"}
    return {"parameters": parameters, "returns": name_type(signature.return_annotation)}


def describe_parameter(parameter: inspect.Parameter) -> Facts:
    """Return the type and default of a parameter, and its kind unless it may be given by position or name."""
    default = REQUIRED if parameter.default is parameter.empty else describe_default(parameter.default)
    how = {} if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else {"how": parameter.kind.name}
    return {"type": name_type(parameter.annotation), "default": default, **how}


def list_members(owner: type[Any]) -> Facts:
    """Return the public methods and properties of a class, and its own ``__init__`` and ``__call__``."""
    found = {}
    for base in reversed(owner.__mro__):
        if not base.__module__.startswith("parallax_core"):
            continue
        if getattr(base, "_is_protocol", False):
            written = vars(base).get("__annotations__", {}).items()
            found.update({name: {"property": name_type(each)} for name, each in written})
        for name, member in vars(base).items():
            if name.startswith("_") and (name not in {"__init__", "__call__"} or dataclasses.is_dataclass(owner)):
                continue
            if isinstance(member, property) and member.fget is not None:
                found[name] = {"property": name_type(inspect.signature(member.fget).return_annotation)}
            elif inspect.isfunction(member) and member.__name__ != "_no_init_or_replace_init":
                found[name] = describe_function(member)
    return found


def name_type(value: Any) -> str:
    """Return a type as written in the source."""
    if isinstance(value, str):
        return NAMED_LATER.get(value, value)
    return value.__name__ if isinstance(value, type) else repr(value)


def find_breaks(old: Facts, new: Facts) -> Iterator[str]:
    """Yield the breaks between two descriptions: facts of the old that plugins rely on and the new lacks."""
    for name, hook in old["hooks"].items():
        if name not in new["hooks"]:
            yield f"hook {name} is gone"
            continue
        now = new["hooks"][name]
        yield from compare_hook(name, hook, now)
    for name, facts in old["names"].items():
        if name not in new["names"]:
            yield f"{name} is gone"
        else:
            yield from compare_name(name, facts, new["names"][name])


def compare_hook(name: str, old: Facts, new: Facts) -> Iterator[str]:
    """Yield the breaks of a hook; arguments may be added, since implementations receive only those they name."""
    for flag in ("historic", "firstresult", "returns"):
        if old[flag] != new[flag]:
            yield f"{flag} of hook {name} was {old[flag]}, and is {new[flag]}"
    for argument, facts in old["parameters"].items():
        if new["parameters"].get(argument) != facts:
            yield f"argument {argument} of hook {name} was {facts}, and is {new['parameters'].get(argument)}"


def compare_name(name: str, old: Facts, new: Facts) -> Iterator[str]:
    """Yield the breaks of a name of the API."""
    if old["kind"] != new["kind"]:
        yield f"{name} was a {old['kind']}, and is a {new['kind']}"
        return
    kind = old["kind"]
    if kind == "record":
        yield from compare_fields(name, old, new)
    if kind in {"record", "protocol", "class"}:
        may_grow = kind != "protocol" or name in GIVEN
        yield from compare_members(name, old["members"], new["members"], may_grow=may_grow)
    if kind == "function":
        yield from compare_function(name, old, new)
    for part in ("bases", "of"):
        if missing := [each for each in old.get(part, ()) if each not in new[part]]:
            yield f"{name} no longer has {', '.join(missing)}"
    if kind == "constant" and old != new:
        yield f"{name} was {old}, and is {new}"


def compare_fields(name: str, old: Facts, new: Facts) -> Iterator[str]:
    """Yield the breaks of a record: new fields need defaults, and must come last if fields are positional."""
    for field, facts in old["fields"].items():
        if new["fields"].get(field) != facts:
            yield f"field {field} of {name} was {facts}, and is {new['fields'].get(field)}"
    for field, facts in new["fields"].items():
        if field not in old["fields"] and facts["default"] == REQUIRED:
            yield f"field {field} of {name} is new, and has no default"
    places, before = list(new["fields"]), list(old["fields"])
    if not old["keywords"] and (new["keywords"] or places[: len(before)] != before):
        yield f"the fields of {name} are in other places"


def compare_members(name: str, old: Facts, new: Facts, *, may_grow: bool) -> Iterator[str]:
    """Yield the breaks of methods and properties; protocols that plugins implement must not grow."""
    for member, facts in old.items():
        if member not in new:
            yield f"{name}.{member} is gone"
        elif "property" in facts or "property" in new[member]:
            if facts != new[member]:
                yield f"{name}.{member} was {facts}, and is {new[member]}"
        else:
            yield from compare_function(f"{name}.{member}", facts, new[member], may_grow=may_grow)
    if not may_grow and (added := sorted(set(new) - set(old))):
        yield f"{name} has {', '.join(added)}, which its implementations lack"


def compare_function(name: str, old: Facts, new: Facts, *, may_grow: bool = True) -> Iterator[str]:
    """Yield the breaks of a function: new parameters need defaults, and must come last or be keyword-only."""
    if old["returns"] != new["returns"]:
        yield f"{name} returned {old['returns']}, and returns {new['returns']}"
    before, now = old["parameters"], new["parameters"]
    if {each: now.get(each) for each in before} != before or list(now)[: len(before)] != list(before):
        yield f"the parameters of {name} were {before}, and are {now}"
    added = [each for each in now if each not in before]
    if bad := [each for each in added if not may_grow or now[each]["default"] == REQUIRED]:
        yield f"{name} has the new parameters {', '.join(bad)}"
