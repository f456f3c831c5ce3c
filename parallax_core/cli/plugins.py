"""``parallax plugins``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import typer

from parallax_core.cli.command import new_app
from parallax_core.cli.table import print_table
from parallax_core.contracts.policy import PolicyKind
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Registry

app = new_app()


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one object per plugin.")] = False,
) -> None:
    """Show the installed plugins, the state of each, and what it offers."""
    found = describe_plugins(PluginHost.discover())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [row for each in found for row in _make_rows(each)]
    print_table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"), rows)
    for each in found:
        if each["reason"]:
            print(f"\n{each['name']} is {each['state']}: {each['reason']}\n  {each['remedy']}")


def describe_plugins(host: PluginHost) -> list[dict[str, Any]]:
    """Return one dictionary per plugin: its record, and the names it offers of each kind."""
    offers: dict[PluginRecord, dict[str, list[str]]] = {}
    for kind, registry in _list_registries(host):
        for offer in registry.offers:
            offers.setdefault(offer.plugin, {}).setdefault(kind, []).append(offer.spec.name)
    return [
        {
            "name": record.name,
            "distribution": record.distribution,
            "version": record.version,
            "module": record.module,
            "state": record.state,
            "reason": record.reason,
            "remedy": record.remedy,
            "offers": offers.get(record, {}),
        }
        for record in host.records
    ]


def _list_registries(host: PluginHost) -> Iterator[tuple[str, Registry[Any]]]:
    yield "backends", host.backends()
    yield "models", host.models()
    yield "sources", host.sources()
    yield "transports", host.transports()
    for kind in get_args(PolicyKind):
        yield kind, host.policies(kind)


def _make_rows(plugin: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line for the plugin, and one more for each further kind of thing it offers."""
    record = tuple(plugin[key] for key in ("name", "distribution", "version", "state"))
    offers = [f"{kind}: {', '.join(names)}" for kind, names in plugin["offers"].items()] or ["-"]
    yield (*record, offers[0])
    yield from ((*[""] * len(record), each) for each in offers[1:])
