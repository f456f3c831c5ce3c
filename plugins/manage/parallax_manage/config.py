"""Show every setting and its origin."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from parallax_core.api.cli import Config, ConfigFile, PluginHost, new_app, print_table
from parallax_core.api.installation import Setting

app = new_app()


@app.command()
def config(
    section: Annotated[
        str | None, typer.Argument(metavar="SECTION", help="Show this section only, and explain each of its settings.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the file, and a list of settings.")] = False,
    file: ConfigFile = None,
) -> None:
    """Show every setting, its value, and where that comes from.

    A file parallax.toml is read here or in your configuration folder; --config or PARALLAX_CONFIG names another.
    PARALLAX_SECTION__KEY in the environment comes before a file, and an option before both.
    """
    loaded = Config.load(file)
    settings = list_settings(loaded, PluginHost.prepare(loaded), section)
    if as_json:
        path = str(loaded.file) if loaded.file else None
        print(json.dumps({"file": path, "settings": [describe_setting(each) for each in settings]}, indent=2))
        return
    print(f"file: {loaded.file or 'none'}\n")
    if section is not None:
        print("\n\n".join(map(explain_setting, settings)))
        return
    rows = [(f"[{each.section}] {each.key.name}", json.dumps(each.shown), _name_origin(each)) for each in settings]
    print_table(("SETTING", "VALUE", "FROM"), rows)


def list_settings(loaded: Config, host: PluginHost, section: str | None = None) -> list[Setting]:
    """Return the settings of ``section``, or of all sections that core and loaded plugins declare, core's first.

    Raises:
        UnknownName: if no plugin declares ``section``.
    """
    registry = host.settings()
    return [
        setting
        for offer in (registry.offers if section is None else [registry.get(section)])
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


def explain_setting(setting: Setting) -> str:
    """Return a paragraph on a setting: its value, origin, allowed values and meaning."""
    lines = [f"[{setting.section}] {setting.key.name} = {json.dumps(setting.shown)} (from: {_name_origin(setting)})"]
    lines += [f"  {text}" for text in (setting.key.expected, setting.key.description) if text]
    return "\n".join(lines)


def _name_origin(setting: Setting) -> str:
    return setting.origin.name or setting.origin.kind
