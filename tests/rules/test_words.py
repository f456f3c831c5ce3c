"""The text of the repository has no marks of unfinished work, paths of one machine or issue numbers."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from parallax_core.base.refs import Ref
from parallax_core.builtin import plugin

ROOT = Path(__file__).parents[2]

# The patterns are assembled from parts, so that this file does not match them itself.
MARKS = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
HOMES = ("home", "root", "Users", "work", "opt", "tmp")
PATTERNS = {
    "a mark of unfinished work": re.compile(rf"\b({'|'.join(MARKS)})\b"),
    "a path of one machine": re.compile(rf"(?<![\w.}}$)~-])/({'|'.join(HOMES)})/\w"),
    "a number of an issue": re.compile(r"(?<![\w&/(])#\d{1,5}\b"),
    "an unsafe way to load code": re.compile(r"trust_remote_code\s*=\s*" + "True"),
}
BUILT = ROOT / "plugins/web/parallax_web/page"
"""What is made from other people's sources, too."""
DRAWERS = {"utils", "util", "helpers", "common", "misc"}
"""Module names that say nothing about their contents."""


def list_files() -> list[Path]:
    """Return the files of this repository: tracked ones, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in found if path.is_file() and BUILT not in path.parents]


def find_words(text: str) -> list[str]:
    """Return the forbidden words in ``text``, with their line numbers."""
    return [
        f"line {number}: {what}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in PATTERNS.items()
        if (match := pattern.search(line))
    ]


def test_files_say_nothing_they_should_not() -> None:
    found = {}
    for path in list_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if words := find_words(text):
            found[path.relative_to(ROOT).as_posix()] = words
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        f"# {MARKS[0]}: later",
        f"# {MARKS[2]} why",
        f'open("/{HOMES[0]}/me/model")',
        f"see /{HOMES[-1]}/results",
        "closes #" + "12",
        "load(trust_remote_code=" + "True)",
    ],
)
def test_patterns_find_what_they_are_for(line: str) -> None:
    assert len(find_words(f"fine\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line",
    ["https://host/home/page", "$HOME/work/x", "~/work/x", "color: #333333;", "[jump](#2-words)", "&#39;"],
)
def test_patterns_leave_the_rest_alone(line: str) -> None:
    assert find_words(line) == []


def test_modules_are_named_after_what_is_inside() -> None:
    assert [path for path in list_files() if path.suffix == ".py" and path.stem in DRAWERS] == []


def test_every_hook_has_a_docstring() -> None:
    tree = ast.parse((ROOT / "parallax_core/hookspecs.py").read_text(encoding="utf-8"))
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert hooks
    assert [hook.name for hook in hooks if not ast.get_docstring(hook)] == []


def test_every_reference_of_the_builtin_plugin_loads() -> None:
    references = [
        value
        for name in dir(plugin)
        if name.startswith("parallax_register_")
        for spec in getattr(plugin, name)()
        for value in (getattr(spec, field) for field in type(spec).__dataclass_fields__)
        if isinstance(value, Ref)
    ]
    assert references
    assert all(callable(reference.load()) for reference in references)
