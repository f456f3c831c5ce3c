"""The page on testing a plugin names every kit with its exact attributes, and its example works."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness import run_test

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/testing.md").read_text(encoding="utf-8")
KITS = {
    "Stages": "stage:StageConformance",
    "Transports": "process:ProcessTransportConformance",
    "Engines": "engine:EngineConformance",
}
"""Sections with a table of attributes, and their kits."""
BASES = {"LinkConformance", "PolicyConformance"}
"""Base classes of kits that plugins do not subclass directly."""


def find_section(title: str) -> str:
    """Return the section of a kind of plugin on the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def read_default(written: str) -> object:
    """Return a default as parsed from the page: Python, or a number of MiB."""
    if found := re.fullmatch(r"(\d+) MiB", written):
        return int(found[1]) * 2**20
    return ast.literal_eval(written.strip("`"))


def list_attributes() -> list[tuple[str, str, str]]:
    """Return the section, name and default of every attribute in the tables."""
    rows = r"^\| `(\w+)` \| (`[^`]+`|\d+ MiB) \|"
    return [(title, *found) for title in KITS for found in re.findall(rows, find_section(title), re.MULTILINE)]


def test_page_names_every_kit_where_it_is() -> None:
    defined = {
        f"parallax_core.testing.{path.stem}.{name}"
        for path in (ROOT / "parallax_core/testing").glob("*.py")
        for name in re.findall(r"^class (\w+Conformance)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        if name not in BASES
    }
    shown = re.findall(r"^\| `(parallax_core\.testing\.\w+)\.(.*?) \|", PAGE, re.MULTILINE)
    named = {f"{module}.{kit}" for module, kits in shown for kit in re.findall(r"\w+Conformance", kits)}
    assert named == defined


@pytest.mark.parametrize(("title", "attribute", "default"), list_attributes(), ids=lambda value: value)
def test_attribute_has_the_default_of_the_page(title: str, attribute: str, default: str) -> None:
    module, _, kit = KITS[title].partition(":")
    owner: Any = getattr(importlib.import_module(f"parallax_core.testing.{module}"), kit)
    assert getattr(owner, attribute) == read_default(default)


def test_every_section_has_attributes() -> None:
    assert {title for title, _, _ in list_attributes()} == set(KITS)


def test_example_of_the_page_is_a_kit_that_passes() -> None:
    code = find_section("Stages").partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "testing.md", "exec"), names)  # noqa: S102 - it is our own page
    for test in ("test_every_split_equals_the_whole", "test_fork_at_every_length_equals_recomputation"):
        assert run_test(names["TestMyStage"], test) == ""
