"""Show the installed plugins and what they offer, or write one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer

from parallax_core.api.cli import Config, ConfigFile, PluginHost, new_app, print_table
from parallax_core.api.installation import (
    COMMANDS,
    HIDDEN,
    PluginConflict,
    PluginRecord,
    choose_point,
    examine_command,
    extend,
    find_commands,
    localize_here,
)

summary = "Show the installed plugins, the state of each, and what it offers; or write one of your own."
app = new_app(summary, extend("plugins"))


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one object per plugin.")] = False,
    config: ConfigFile = None,
) -> None:
    """Show the plugins, unless another command is asked for."""
    if ctx.invoked_subcommand is None:
        plugins(as_json=as_json, config=config)


def plugins(*, as_json: bool, config: Path | None = None) -> None:
    """Print the installed plugins, the state of each, and what it offers."""
    found = describe_plugins(PluginHost.discover(Config.load(config)))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [row for each in found for row in _make_rows(each)]
    print_table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"), rows)
    for each in found:
        if each["reason"]:
            print(f"\n{each['name']} is {each['state']}: {each['reason']}\n  {localize_here(each['remedy'])}")
    sentences = (f"{each['name']}: {sentence}" for each in found for sentence in each["refused"])
    for line in dict.fromkeys(sentences):  # each plugin of a conflict has the same sentence
        print(f"\n{line}")


@dataclass(slots=True)
class Contribution:
    """The offers of one plugin."""

    offers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The names that it offers, by kind."""
    refused: list[str] = field(default_factory=list)
    """A sentence for each offer that is not used."""


def describe_plugins(host: PluginHost) -> list[dict[str, Any]]:
    """Return one dictionary per plugin: its record, and the names it offers of each kind."""
    found: dict[str, Contribution] = defaultdict(Contribution)
    for kind, registry in host.list_registries().items():
        conflicts = registry.conflicts()
        for offer in registry.offers:
            if conflict := conflicts.get(offer.spec.name):
                found[offer.plugin.key].refused.append(f"{conflict.message}: {conflict.hint}")
            else:
                found[offer.plugin.key].offers[kind].append(offer.spec.name)
        for offer in registry.passed:
            sentence = f"{registry.kind.title} {offer.spec.name!r} is not used: another distribution is preferred"
            found[offer.plugin.key].refused.append(sentence)
    for key, hooks in host.list_hooks().items():
        found[key].offers["hooks"] = hooks
    records = [*host.records, *_add_commands(host.records, found)]
    return [
        {
            "name": record.name,
            "distribution": record.distribution,
            "version": record.version,
            "module": record.module,
            "state": record.state,
            "reason": record.reason,
            "remedy": record.remedy,
            "offers": dict(found[record.key].offers),
            "refused": found[record.key].refused,
        }
        for record in records
    ]


def _add_commands(records: list[PluginRecord], found: dict[str, Contribution]) -> list[PluginRecord]:
    """Add every command to a plugin of its distribution; return a record for each distribution that has no other."""
    owners = {record.distribution: record for record in reversed(records)}
    extra = []
    for name, points in find_commands().items():
        for point in points:
            record = examine_command(point)
            if record.distribution not in owners:
                owners[record.distribution] = record
                extra.append(record)
            owner = found[owners[record.distribution].key]
            if refusal := _refuse_command(name, point, points):
                owner.refused.append(refusal)
            elif record.state == "loaded":
                owner.offers["commands"].append(name)
    return extra


def _refuse_command(name: str, point: EntryPoint, points: Sequence[EntryPoint]) -> str:
    """Return why a plugin's command is not available under its name; empty if it is."""
    if name in COMMANDS or name in HIDDEN:
        return f"command {name!r} is refused: it is one of Parallax's own"
    try:
        is_chosen = choose_point(name, points) == point
    except PluginConflict as conflict:
        return f"{conflict.message}: {conflict.hint}"
    return "" if is_chosen else f"command {name!r} is not used: another distribution is preferred"


def _make_rows(plugin: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line for the plugin, and one more for each further kind of thing it offers."""
    record = tuple(plugin[key] for key in ("name", "distribution", "version", "state"))
    offers = [f"{kind}: {', '.join(names)}" for kind, names in plugin["offers"].items()] or ["-"]
    yield (*record, offers[0])
    yield from ((*[""] * len(record), each) for each in offers[1:])
