"""Generates the tables of the architecture page: the layers that import-linter checks, and the purpose of each package.

``python -m tests.rules.architecturepage`` writes them into the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/architecture.md"
CORE = ROOT / "parallax_core"

BEGIN, END = "<!-- made of the code: python -m tests.rules.architecturepage -->", "<!-- end -->"
MODULES = {"__main__", "api", "hookspecs"}
"""Layers that are modules, not packages."""


def read_layers() -> list[list[str]]:
    """Return the packages of each layer of core, from the highest layer to the lowest."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    lines: list[str] = next(each["layers"] for each in settings if each["id"] == "layers")
    return [re.findall(r"\w+", line) for line in lines]


def read_purpose(package: Path) -> str:
    """Return the first paragraph of the docstring of a package or module."""
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    return " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())


def list_packages(name: str) -> list[Path]:
    """Return a package of core and its subpackages."""
    found = [path.parent for path in sorted((CORE / name).rglob("__init__.py")) if "templates" not in path.parts]
    return found or [CORE / name]


def write_tables() -> str:
    """Return the generated part of the page."""
    layers = read_layers()
    drawn = [f"    {' | '.join(names)}" for names in layers]
    rows = [
        f"| `{path.relative_to(CORE).as_posix()}` | {read_purpose(path)} |"
        for names in layers
        for name in names
        if name not in MODULES
        for path in list_packages(name)
    ]
    return "\n".join([BEGIN, "", *drawn, "", "| Package | What belongs there |", "|---|---|", *rows, "", END])


def write_page() -> str:
    """Return the page with its tables regenerated."""
    page = PAGE.read_text(encoding="utf-8")
    return page[: page.index(BEGIN)] + write_tables() + page[page.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PAGE)
