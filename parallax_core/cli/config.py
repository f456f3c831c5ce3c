"""The command ``parallax config``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from parallax_core.cli.command import new_app
from parallax_core.cli.option import ConfigFile
from parallax_core.cli.table import print_table
from parallax_core.config.config import Config, Setting
from parallax_core.plugins.host import PluginHost

app = new_app()


@app.command()
def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the file, and a list of settings.")] = False,
    file: ConfigFile = None,
) -> None:
    """Show every setting, its value, and where that comes from.

    A file parallax.toml is read here or in your configuration folder; --config or PARALLAX_CONFIG names another.
    PARALLAX_SECTION__KEY in the environment comes before a file, and an option before both.
    """
    loaded = Config.load(file)
    settings = list_settings(loaded, PluginHost.prepare(loaded))
    if as_json:
        path = str(loaded.file) if loaded.file else None
        print(json.dumps({"file": path, "settings": [describe_setting(each) for each in settings]}, indent=2))
        return
    print(f"file: {loaded.file or 'none'}\n")
    rows = [(f"[{each.section}] {each.key.name}", json.dumps(each.shown), _name_origin(each)) for each in settings]
    print_table(("SETTING", "VALUE", "FROM"), rows)


def list_settings(loaded: Config, host: PluginHost) -> list[Setting]:
    """Return the settings of all sections that core and loaded plugins declare, core's first."""
    registry = host.settings()
    return [
        setting
        for offer in registry.offers
        for setting in loaded.explain(offer.spec.name, registry.get(offer.spec.name).load(offer.spec.schema))
    ]


def describe_setting(setting: Setting) -> dict[str, object]:
    """Return a setting as a JSON object."""
    return {
        "section": setting.section,
        "key": setting.key.name,
        "value": setting.shown,
        "origin": setting.origin.kind,
        "place": setting.origin.name or None,
        "expected": setting.key.expected,
        "description": setting.key.description,
        "secret": setting.key.is_secret,
    }


def _name_origin(setting: Setting) -> str:
    return setting.origin.name or setting.origin.kind
