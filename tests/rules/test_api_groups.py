"""The names of `parallax_core.api` are grouped, and unused names are provisional."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from parallax_core import api
from tests.rules.contractpage import list_modules
from tests.rules.pluginapi import describe_api

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "parallax_core/api/__init__.py").read_text(encoding="utf-8")
USERS = (
    "plugins/**/*.py",
    "docs/examples/**/*.py",
    "parallax_core/builtin/**/*.py",
    "plugins/scaffold/parallax_scaffold/templates/**/*.j2",
    "tests/data/old_plugins/**/*.py",
)
IMPORT = re.compile(r"from parallax_core\.api import (\([^)]*\)|.*)")


def read_groups() -> dict[str, list[str]]:
    """Return the names of each group, by the comment above them."""
    groups: dict[str, list[str]] = {}
    group: list[str] | None = None
    for line in SOURCE.partition("__all__ = [")[2].partition("\n]")[0].splitlines()[1:]:
        if found := re.fullmatch(r"    # (.+)", line):
            group = groups.setdefault(found[1], [])
        else:
            assert group is not None, f"{line.strip()} is in no group"
            group.append(line.strip(' ",'))
    return groups


def list_used() -> Iterator[str]:
    """Yield every name that a plugin, example or template uses."""
    for path in (each for pattern in USERS for each in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        for found in IMPORT.finditer(text):
            yield from re.findall(r"\w+", found[1])
        if "from parallax_core import api" in text:
            yield from re.findall(r"\bapi\.(\w+)", text)


def list_contracts() -> Iterator[str]:
    """Yield the names of types that plugins implement or receive, and so need not import."""
    for module, names in list_modules().items():
        is_contract = module.startswith("parallax_core.contracts.")
        yield from (name for name in names if is_contract or getattr(getattr(api, name), "_is_protocol", False))


def list_returned() -> Iterator[str]:
    """Yield the names of types that functions and methods of the API return."""
    for facts in describe_api()["names"].values():
        for function in (facts, *facts.get("members", {}).values()):
            yield from re.findall(r"\w+", function.get("returns", ""))


def test_every_name_is_in_one_group() -> None:
    counts = Counter(name for names in read_groups().values() for name in names)
    assert counts == Counter(api.__all__)
    assert set(counts.values()) == {1}
    assert counts.keys() == {name for names in list_modules().values() for name in names}


def test_names_of_a_group_are_in_order() -> None:
    for title, names in read_groups().items():
        assert names, title
        assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)), title


def test_provisional_names_are_those_that_nobody_uses() -> None:
    used, given = set(list_used()), {*list_contracts(), *list_returned()}
    assert set(api.__all__) >= api.PROVISIONAL
    assert used & api.PROVISIONAL == set(), "what is used is a promise: take it out of PROVISIONAL"
    assert set(api.__all__) - used - given - api.PROVISIONAL == set(), "no plugin uses it: is it for plugins?"
