"""No version with a known vulnerability is pinned, or allowed by the requirements of a distribution."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LIST = ROOT / ".ci/advisories.toml"
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
PRIVATE = {"uvicorn": "parallax_core/server/connection.py"}
"""Packages whose private attributes core uses, and where: a newer version may lack them."""

Safe = Mapping[str, Version]


def read_safe() -> Safe:
    """Return the first safe version of each package on the list."""
    return {name: Version(entry["safe"]) for name, entry in tomllib.loads(LIST.read_text(encoding="utf-8")).items()}


def read_pinned(path: Path = ROOT / "constraints.txt") -> Safe:
    """Return the pinned versions."""
    lines = re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in lines}


def list_wanted(project: Path) -> Iterator[Requirement]:
    """Yield the requirements of a distribution, including its extras and development groups."""
    content = tomllib.loads(project.read_text(encoding="utf-8"))
    settings = content["project"]
    groups = (settings.get("optional-dependencies", {}), content.get("dependency-groups", {}))
    for each in (*settings["dependencies"], *(text for group in groups for texts in group.values() for text in texts)):
        yield Requirement(each)


def find_floor(wanted: Requirement) -> Version:
    """Return the lowest version that a requirement allows."""
    floors = [Version(each.version) for each in wanted.specifier if each.operator in {">=", "==", "~="}]
    return max(floors, default=Version("0"))


def list_holes(wanted: Iterator[Requirement], safe: Safe) -> list[str]:
    """Return the requirements that allow a vulnerable version."""
    return [str(each) for each in wanted if find_floor(each) < safe.get(canonicalize_name(each.name), Version("0"))]


def test_locked_set_has_no_version_with_a_known_hole() -> None:
    pinned = read_pinned()
    assert {name: str(pinned[name]) for name, safe in read_safe().items() if pinned[name] < safe} == {}


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_distribution_allows_no_version_with_a_known_hole(project: Path) -> None:
    assert list_holes(list_wanted(project), read_safe()) == []


def test_hole_that_is_allowed_is_found() -> None:
    wanted = [Requirement(text) for text in ("jinja2>=3.1", "h11", "Jinja2>=3.1.6", "rich>=13")]
    assert list_holes(iter(wanted), read_safe()) == ["jinja2>=3.1", "h11"]


def test_advisories_say_what_is_wrong() -> None:
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))
    assert list(entries) == sorted(entries)
    for name, entry in entries.items():
        assert canonicalize_name(name) == name
        assert re.fullmatch(r"(CVE-\d{4}-\d{4,}|PYSEC-\d{4}-\d+|GHSA(-\w{4}){3})", entry["advisory"])
        assert entry["hole"]


@pytest.mark.parametrize("name", PRIVATE)
def test_package_whose_private_parts_are_used_is_bounded_above(name: str) -> None:
    (wanted,) = [each for each in list_wanted(PROJECTS[0]) if each.name == name]
    pinned = read_pinned()[name]
    assert wanted.specifier.contains(pinned)
    assert not wanted.specifier.contains(f"{pinned.major}.{pinned.minor + 1}")
    assert name in (ROOT / PRIVATE[name]).read_text(encoding="utf-8")
