"""The pages of contracts and errors match the code.

Run this file to print the table of errors for its page; `contractpage.py` writes the page of contracts.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from parallax_core import api
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.server.errors import error_response
from tests.rules import partspage
from tests.rules.contractpage import PAGE, ROOT, Module, find_name, list_modules, write_page

ERRORS = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
CORE = ROOT / "parallax_core"
CLASS = re.compile(r"^class (\w+)\((\w+)\):", re.MULTILINE)


def list_errors() -> list[type[ParallaxError]]:
    """Return every error class of core that users may see, sorted by name."""
    found: dict[str, type[ParallaxError]] = {"ParallaxError": ParallaxError}
    classes = [
        (path, *names) for path in CORE.rglob("*.py") for names in CLASS.findall(path.read_text(encoding="utf-8"))
    ]
    for _ in classes:  # until no further subclass is found
        new = [(path, name) for path, name, base in classes if base in found and name not in found]
        found.update({name: getattr(import_module(name_module(path)), name) for path, name in new})
        if not new:
            break
    return [found[name] for name in sorted(found)]


def name_module(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def find_status(error: type[ParallaxError]) -> int:
    """Return the HTTP status of an error."""
    made: Any = error.__new__(error)
    made.message, made.hint, made.param, made.retry_after_s = "", "", None, 1
    return error_response(made).status_code


def write_row(error: type[ParallaxError]) -> str:
    """Return the table row of an error."""
    meaning = " ".join((error.__doc__ or "").partition("\n\n")[0].replace("``", "`").split())
    exits = 2 if issubclass(error, UsageError) else 1
    is_ours = "yes" if error.__name__ in api.__all__ else ""
    return f"| `{error.__name__}` | {meaning} | {find_status(error)} | {exits} | {is_ours} |"


def write_table() -> str:
    """Return the table of errors."""
    head = "| Error | Means | HTTP | Exit code | For plugins |\n|---|---|---|---|---|"
    return "\n".join([head, *map(write_row, list_errors())])


def test_page_of_contracts_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.contractpage"


def test_page_of_parts_is_that_of_the_code() -> None:
    assert partspage.PAGE.read_text(encoding="utf-8") == partspage.write_page(), "run: python -m tests.rules.partspage"


def test_page_of_contracts_has_every_name_of_the_api() -> None:
    headings = re.findall(r"^### `(\w+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(api.__all__)


def test_every_name_of_the_api_says_what_it_is() -> None:
    silent = [
        name
        for module, names in list_modules().items()
        for node in Module(module, set(names)).tree.body
        if (name := find_name(node)) in names
        and isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_table_of_errors_is_that_of_the_code() -> None:
    assert write_table() in ERRORS, f"it should be:\n{write_table()}"


def test_errors_are_told_of_where_they_are_raised() -> None:
    assert len(list_errors()) > 10
    assert {each.__name__ for each in list_errors()} >= {"BrokenPlugin", "PluginConflict", "UsageError", "BadFrame"}


@pytest.mark.parametrize("name", [name for name in api.__all__ if isinstance(getattr(api, name), type)])
def test_page_of_contracts_names_every_field(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
    fields = getattr(getattr(api, name), "__dataclass_fields__", {})
    assert [field for field in fields if not field.startswith("_") and f"- `{field}: " not in section] == []


if __name__ == "__main__":
    print(write_table())
