"""Core calls every hook, and the page of hooks shows its exact signature with a working example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_core import hookspecs
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
CALLS = (ROOT / "parallax_core/plugins/host.py").read_text(encoding="utf-8")
HOOKS: dict[str, Callable[..., Any]] = {
    name: function for name, function in vars(hookspecs).items() if hasattr(function, "parallax_spec")
}


def write_heading(name: str) -> str:
    """Return the heading of a hook on the page."""
    return f"## `{name}{str(inspect.signature(HOOKS[name])).replace(chr(39), '')}`"


def find_section(name: str) -> str:
    """Return the section of a hook on the page."""
    return PAGE.partition(f"\n{write_heading(name)}\n")[2].partition("\n## ")[0].partition("\n# ")[0]


def test_page_has_the_hooks_in_order_with_their_exact_signatures() -> None:
    assert re.findall(r"^## `parallax_.*$", PAGE, re.MULTILINE) == [
        write_heading(name) for name in sorted(HOOKS, key=lambda name: PAGE.find(f"## `{name}("))
    ]


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_called_by_core(name: str) -> None:
    assert re.search(rf'"{name}"', CALLS)


@pytest.mark.parametrize("name", HOOKS)
def test_hook_has_an_example_that_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", find_section(name), re.DOTALL)
    (tmp_path / f"example_of_{name}.py").write_text(code, encoding="utf-8")
    module = importlib.import_module(f"example_of_{name}")
    record = PluginRecord(name="example", distribution="example", version="1", module="example", state="loaded")
    host = PluginHost([(record, module)])
    assert [implementation.function for implementation in host._caller.find(name)] == [getattr(module, name)]
    host.list_registries()
    list(host.diagnose())
    host.shutdown(10)
    [found] = host.records
    assert found.state == "loaded", found.reason
