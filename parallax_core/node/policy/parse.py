"""Parses a policy setting (``NAME:option=value``) and makes the guarded policy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal, cast, get_type_hints, overload

import msgspec

from parallax_core.base.errors import BrokenPlugin, UsageError
from parallax_core.contracts.policy import (
    BatchingPolicy,
    Policy,
    PolicyKind,
    PolicySpec,
    PreemptionPolicy,
    RoutingPolicy,
    SchedulingPolicy,
)
from parallax_core.node.policy.guard import BatchingGuard, PreemptionGuard, RoutingGuard, SchedulingGuard
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

GuardedKind = Literal["batching", "scheduling", "preemption", "routing"]
"""The kinds of policies that a replica and its router use."""


@overload
def make_policy(host: PluginHost, kind: Literal["batching"], text: str) -> BatchingPolicy: ...
@overload
def make_policy(host: PluginHost, kind: Literal["scheduling"], text: str) -> SchedulingGuard: ...
@overload
def make_policy(host: PluginHost, kind: Literal["preemption"], text: str) -> PreemptionPolicy: ...
@overload
def make_policy(host: PluginHost, kind: Literal["routing"], text: str) -> RoutingPolicy: ...
@overload
def make_policy(host: PluginHost, kind: GuardedKind, text: str) -> Policy: ...
def make_policy(host: PluginHost, kind: GuardedKind, text: str) -> Policy:
    """Return the policy that ``text`` describes: ``NAME``, or ``NAME:option=value,option=value``.

    Its answers are always valid: a guard replaces invalid ones, see `parallax_core.node.policy.guard`.

    Raises:
        UsageError: if an option is unknown, or its value is invalid.
        UnknownName: if no plugin offers a policy of that kind and name; the hint lists those offered.
        PluginConflict: if several plugins offer it.
        BrokenPlugin: if the policy cannot be imported, or is no dataclass.
    """
    policy = read_policy(host, kind, text)
    match kind:
        case "batching":
            return BatchingGuard(cast("BatchingPolicy", policy))
        case "scheduling":
            return SchedulingGuard(cast("SchedulingPolicy", policy))
        case "preemption":
            return PreemptionGuard(cast("PreemptionPolicy", policy))
        case "routing":
            return RoutingGuard(cast("RoutingPolicy", policy))


def read_policy(host: PluginHost, kind: PolicyKind, text: str) -> Policy:
    """Return the policy that ``text`` describes, without a guard; raises as `make_policy` does."""
    name, _, rest = text.partition(":")
    offer = host.policies(kind).get(name.strip())
    factory = offer.load(offer.spec.factory)
    types = _list_options(offer, factory)
    options = _read_options(rest, types, f"{kind} policy {offer.spec.name!r}")
    try:
        return msgspec.convert(options, factory, strict=False)
    except msgspec.ValidationError as error:
        message = f"{kind} policy {offer.spec.name!r}: {_explain(str(error), options, types)}"
        raise UsageError(message, _hint(types)) from error


def _list_options(offer: Offer[PolicySpec], factory: object) -> dict[str, str]:
    """Return the options of a policy, each with the name of its type."""
    if not (isinstance(factory, type) and dataclasses.is_dataclass(factory)):
        message = f"{offer.spec.name!r} of {offer.plugin.origin} is not a dataclass, so its options are unknown"
        raise BrokenPlugin(message, "report it to its authors")
    types = get_type_hints(factory)
    names = (field.name for field in dataclasses.fields(factory) if field.init)
    return {name: getattr(types[name], "__name__", str(types[name])) for name in names}


def _read_options(text: str, types: Mapping[str, str], policy: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        option, equals, value = (word.strip() for word in part.partition("="))
        if option not in types:
            near = get_close_matches(option, types, n=1)
            message = f"{policy} has no option {option!r}"
            raise UsageError(message, f"did you mean {near[0]!r}?" if near else _hint(types))
        if not equals or option in options:
            message = f"{policy}: option {option!r} is given {'twice' if equals else 'without a value'}"
            raise UsageError(message, f"write {option}=VALUE, once")
        options[option] = value
    return options


def _explain(reason: str, options: Mapping[str, str], types: Mapping[str, str]) -> str:
    """Return a validation error's ``reason`` in terms of the options that the user wrote."""
    found = re.search(r"\$\.(\w+)", reason)
    if found is None:
        return reason
    option = found.group(1)
    return f"option {option!r} is {options[option]!r}, which is no {types[option]}"


def _hint(types: Mapping[str, str]) -> str:
    if not types:
        return "it has no options"
    return f"its options: {', '.join(f'{option} ({kind})' for option, kind in types.items())}"
