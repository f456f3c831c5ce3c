"""``parallax plugins``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from parallax_core.cli.command import new_app
from parallax_core.cli.table import print_table
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

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
    rows = [(each["name"], each["distribution"], each["version"], each["state"], _offers(each)) for each in found]
    print_table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"), rows)
    for each in found:
        if each["reason"]:
            print(f"\n{each['name']} is {each['state']}: {each['reason']}\n  {each['remedy']}")


def describe_plugins(host: PluginHost) -> list[dict[str, Any]]:
    """Return one dictionary per plugin: its record, and the names it offers of each kind."""
    offers: dict[PluginRecord, dict[str, list[str]]] = {}
    for kind, registry in (("backends", host.backends()), ("sources", host.sources())):
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


def _offers(plugin: dict[str, Any]) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in plugin["offers"].items()) or "-"
