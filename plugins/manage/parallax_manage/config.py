"""Show every setting and its origin."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from parallax_core.api import ShownSetting
from parallax_core.api.cli import Config, ConfigFile, PluginHost, new_app, print_table

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
    settings = PluginHost.prepare(loaded).explain_settings(section)
    if as_json:
        path = str(loaded.file) if loaded.file else None
        print(json.dumps({"file": path, "settings": [describe_setting(each) for each in settings]}, indent=2))
        return
    print(f"file: {loaded.file or 'none'}\n")
    if section is not None:
        print("\n\n".join(map(explain_setting, settings)))
        return
    rows = [(f"[{each.section}] {each.key}", json.dumps(each.value), _name_origin(each)) for each in settings]
    print_table(("SETTING", "VALUE", "FROM"), rows)


def describe_setting(setting: ShownSetting) -> dict[str, object]:
    """Return a setting as a JSON object."""
    return {
        "section": setting.section,
        "key": setting.key,
        "value": setting.value,
        "origin": setting.origin,
        "place": setting.place or None,
        "expected": setting.expected,
        "description": setting.description,
        "secret": setting.is_secret,
    }


def explain_setting(setting: ShownSetting) -> str:
    """Return a paragraph on a setting: its value, origin, allowed values and meaning."""
    lines = [f"[{setting.section}] {setting.key} = {json.dumps(setting.value)} (from: {_name_origin(setting)})"]
    lines += [f"  {text}" for text in (setting.expected, setting.description) if text]
    return "\n".join(lines)


def _name_origin(setting: ShownSetting) -> str:
    return setting.place or setting.origin
