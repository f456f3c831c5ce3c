"""The page of the configuration lists every setting of core as the code defines it.

Run this file to print the tables for the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.offers import SETTINGS as OF_CLUSTER
from parallax_core.builtin.offers import SETTINGS
from parallax_core.config.config import Config
from parallax_core.config.schema import Key, list_keys

PAGE = (Path(__file__).parents[2] / "docs/reference/config.md").read_text(encoding="utf-8")
SCHEMAS: Mapping[str, type[Any]] = {spec.name: spec.schema.load() for spec in (*SETTINGS, *OF_CLUSTER)}


def write_row(key: Key) -> str:
    """Return the table row of one setting."""
    default = "" if key.default is None else f"`{json.dumps(key.default, default=list)}`"
    return f"| `{key.name}` | {key.expected} | {default} | {key.description} |"


def write_table(schema: type[Any]) -> str:
    """Return the table of a section."""
    rows = [write_row(key) for key in list_keys(schema).values()]
    return "\n".join(["| Key | Is | Default | Meaning |", "|---|---|---|---|", *rows])


@pytest.mark.parametrize("section", SCHEMAS)
def test_table_of_a_section_is_that_of_the_code(section: str) -> None:
    assert write_table(SCHEMAS[section]) in PAGE.partition(f"\n## `[{section}]`\n")[2].partition("\n## ")[0]


def test_example_of_a_file_is_one(tmp_path: Path) -> None:
    path = tmp_path / "parallax.toml"
    path.write_text(PAGE.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    config = Config.load(path, {})
    assert set(config.sections) >= {"serve", "plugins"}
    for section, schema in SCHEMAS.items():
        config.read(section, schema)


if __name__ == "__main__":
    for section, schema in SCHEMAS.items():
        print(f"## `[{section}]`\n\n{write_table(schema)}\n")
